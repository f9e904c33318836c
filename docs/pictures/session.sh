#!/bin/sh
# What docs/pictures/session.svg shows. Recorded in a clone, with agentvm on PATH; scripts/picture says how.
agentvm exec "uname -sm; head -n 1 /etc/os-release"
agentvm exec -m ./vm:/src:ro "ls /src | wc -l; touch /src/new"
agentvm exec --allow pypi.org "nc -w 2 93.184.215.14 443"
agentvm start dev -q && agentvm exec -n dev "echo from dev >/root/note"
agentvm fork -q dev try && agentvm exec -n try "cat /root/note"
agentvm ps
