"""Tables and figures of the paper, run from their files in conf/table/."""
