"""The mechanisms, one file each, behind one signature."""
