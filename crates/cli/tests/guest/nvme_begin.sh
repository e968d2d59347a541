# What every script for NVMe begins with. PORT is where the server listens on the host, NAME the subsystem.
set -eu
host=11111111-2222-4333-8444-555555555555

nvme_to() { # COMMAND OPTION…: nvme's command, to the server
    command=$1
    shift
    /programs/nvme "$command" -t tcp -a 10.0.2.2 -s "$PORT" -q "nqn.2014-08.org.nvmexpress:uuid:$host" -I "$host" "$@"
}

# There is no udev that would say when.
until_there() {
    for _ in $(seq 600); do
        [ ! -b "$1" ] || return 0
        sleep 0.1
    done
    echo "$1 does not come"
    return 1
}

attach() {
    nvme_to connect -n "$NAME" -i 2 "$@" >/dev/null
    until_there /dev/nvme0n1
}

detach() {
    /programs/nvme disconnect -n "$NAME" >/dev/null
}

# From here on reads come from the server, not from the guest's memory.
forget() {
    sync
    echo 3 >/proc/sys/vm/drop_caches
}
