"""How times are written where Django writes them, on the admin site: as everywhere else in the console."""
