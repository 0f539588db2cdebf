"""Drawing through servers of other projects."""
