# The host proves its name, and has the server prove its own. SECRET is the host's, SERVER_SECRET the server's, WRONG is
# another.
attach --dhchap-secret="$SECRET"
[ "$(cat /sys/class/nvme/nvme0/queue_count)" = 3 ]
/files/blocks /dev/nvme0n1 0 4 60 1
detach

refused() { # OPTION…: the connection is refused
    if nvme_to connect -n "$NAME" -i 2 "$@" >/dev/null 2>/tmp/refused; then
        echo "connected with $*"
        exit 1
    fi
}

attach --dhchap-secret="$SECRET" --dhchap-ctrl-secret="$SERVER_SECRET"
/files/blocks /dev/nvme0n1 0 4 60 2
detach
refused
refused --dhchap-secret="$WRONG"
refused --dhchap-secret="$SECRET" --dhchap-ctrl-secret="$WRONG"
nvme_to discover | grep -q "subnqn: *$NAME" # the log needs no proof
attach --dhchap-secret="$SECRET" --hdr-digest
/files/blocks /dev/nvme0n1 0 4 60 3
detach
host=11111111-2222-4333-8444-666666666666
refused --dhchap-secret="$SECRET" # it is not known
echo "all is as it was written"
