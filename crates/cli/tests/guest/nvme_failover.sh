# Two addresses of one server are two paths to one disk: one directly, and one through a forwarder that is stopped,
# killed and started again under a load. SECOND is the port of the other address.
ifconfig lo 127.0.0.1 up
forward() {
    /files/forward 4421 10.0.2.2 "$SECOND" &
    forwarder=$!
}

connect() { # ADDRESS PORT
    /programs/nvme connect -t tcp -a "$1" -s "$2" -q "nqn.2014-08.org.nvmexpress:uuid:$host" -I "$host" -n "$NAME" -i 2 \
        --keep-alive-tmo=2 --reconnect-delay=1 --ctrl-loss-tmo=600 >/dev/null
}

forward
sleep 0.2
connect 10.0.2.2 "$PORT"
connect 127.0.0.1 4421
until_there /dev/nvme0n1
[ ! -b /dev/nvme1n1 ] # it is the same disk
cd /sys/class/nvme-subsystem/nvme-subsys0
echo round-robin >iopolicy

until_is() { # WANTED FILE
    for _ in $(seq 1200); do
        [ "$(cat "$2" 2>/dev/null)" != "$1" ] || return 0
        sleep 0.1
    done
    echo "$2 is $(cat "$2"), not $1"
    exit 1
}

until_not_live() {
    for _ in $(seq 1200); do
        [ "$(cat nvme1/state)" = live ] || return 0
        sleep 0.1
    done
    echo "the path stays"
    exit 1
}

# The load goes on: it ends at the first error and at the first wrong byte.
echo 0 >/tmp/rounds
{
    rounds=0
    while [ ! -e /tmp/done ]; do
        /files/blocks /dev/nvme0n1 0 4 60 $((rounds + 1)) || { echo "the load has failed"; exit 1; }
        rounds=$((rounds + 1))
        echo $rounds >/tmp/rounds.new
        mv /tmp/rounds.new /tmp/rounds
    done
} &
load=$!

goes_on() {
    before=$(cat /tmp/rounds)
    for _ in $(seq 1200); do
        [ "$(cat /tmp/rounds)" -lt $((before + 3)) ] || return 0
        kill -0 $load
        sleep 0.1
    done
    echo "the load hangs"
    exit 1
}

used() { # the requests of a path so far
    awk '{ print $1 + $5 }' /sys/class/nvme-subsystem/nvme-subsys0/nvme1/nvme0c1n1/stat
}

until_is live nvme1/state
goes_on
before=$(used)
goes_on
[ "$(used)" -gt "$before" ] # both paths are used
echo both

kill -STOP -$forwarder
until_not_live # the keep-alive has failed
goes_on
echo silent
kill -CONT -$forwarder
until_is live nvme1/state
goes_on

kill -KILL -$forwarder
until_not_live
goes_on
echo cut
forward
until_is live nvme1/state
before=$(used)
goes_on
[ "$(used)" -gt "$before" ] # the path is used again
/programs/nvme disconnect -d nvme0 >/dev/null
goes_on
echo other

# The server tells the host not to use the volume: its requests wait until it may.
until_is inaccessible nvme1/nvme0c1n1/ana_state
echo waits
until_is optimized nvme1/nvme0c1n1/ana_state
goes_on
touch /tmp/done
wait $load
cd /
detach
echo "all is as it was written"
