"""What people see: tables, charts, pages, progress."""
