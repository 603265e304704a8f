"""Tables, plots and pages from finished artifacts; nothing here measures anything."""
