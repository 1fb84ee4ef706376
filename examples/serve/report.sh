#!/bin/sh
# The handler of report.print: arguments on stdin, exit code 0 for done and 75 for "again later".
set -eu
args=$(cat)
if [ "$SPILLWAY_ATTEMPT" -eq 1 ]; then
	echo "the printer is warming up" >&2 # becomes the attempt's error
	exit 75
fi
echo "printed $args (task $SPILLWAY_TASK_ID, attempt $SPILLWAY_ATTEMPT)"
