# Two hosts reserve one disk: the kernel without native multipath keeps each connection's disk apart, and each connection
# has a host name and identifier of its own. The server is killed in between.
rmmod nvme_tcp nvme_fabrics nvme_core
insmod /modules/nvme-core.ko multipath=N
insmod /modules/nvme-fabrics.ko
insmod /modules/nvme-tcp.ko

# By the kernel's own file: the program nvme takes a second host at one address for the first.
attach_host() { # HOST DISK
    id="hostnqn=nqn.2014-08.org.nvmexpress:uuid:$1,hostid=$1"
    echo "transport=tcp,traddr=10.0.2.2,trsvcid=$PORT,nqn=$NAME,$id,nr_io_queues=2,reconnect_delay=1,ctrl_loss_tmo=600" \
        >/dev/nvme-fabrics
    until_there "$2"
}
attach_host 11111111-2222-4333-8444-555555555555 /dev/nvme0n1
attach_host 11111111-2222-4333-8444-666666666666 /dev/nvme1n1
one=/dev/nvme0n1 two=/dev/nvme1n1

resv() { # COMMAND DEVICE OPTION…
    command=$1 device=$2
    shift 2
    /programs/nvme "resv-$command" "$device" --namespace-id=1 "$@" >/tmp/resv 2>&1
}

refused() { # COMMAND…: the server refuses it, for a reservation
    if "$@"; then
        echo "not refused: $*"
        exit 1
    fi
    grep -qi 'reservation.conflict' /tmp/resv || { cat /tmp/resv; exit 1; }
}

# Written or read past the page cache, by the device's own command.
access() { # COMMAND DEVICE
    /programs/nvme "$1" "$2" --start-block=8 --block-count=7 --data-size=4096 --data=/tmp/data >/tmp/resv 2>&1
}
head -c 4096 /dev/zero | tr '\0' 'a' >/tmp/data

[ "$(/programs/nvme id-ns $one | awk '/^rescap/ { print $3 }')" = 0xff ]
refused resv acquire $one --crkey=0xa --rtype=1 --racqa=0 # it is not registered
resv register $one --nrkey=0xa --rrega=0 --cptpl=3
resv register $two --nrkey=0xb --rrega=0
refused resv register $two --nrkey=0xc --rrega=0
resv acquire $one --crkey=0xa --rtype=1 --racqa=0
access write $one
access read $two
refused access write $two
refused resv acquire $two --crkey=0xb --rtype=1 --racqa=0
# The kernel fails what programs write through its cache.
if dd if=/tmp/data of=$two bs=4096 count=1 conv=fsync 2>/dev/null; then
    echo "written past a reservation"
    exit 1
fi
resv report $two --eds
grep -q '^ *regctl *: 2' /tmp/resv
grep -q '^ *rtype *: 1' /tmp/resv
grep -q 'rkey *: a$' /tmp/resv || { cat /tmp/resv; exit 1; }

echo reserved
while [ "$(cat /sys/class/nvme/nvme0/state)" = live ] || [ "$(cat /sys/class/nvme/nvme1/state)" = live ]; do sleep 0.1; done
echo lost
while [ "$(cat /sys/class/nvme/nvme0/state)" != live ] || [ "$(cat /sys/class/nvme/nvme1/state)" != live ]; do sleep 0.1; done
access write $one
access read $two
refused access write $two

# The second host fences the first.
resv acquire $two --crkey=0xb --prkey=0xa --rtype=2 --racqa=2
access write $two
refused access write $one
refused access read $one
refused resv acquire $one --crkey=0xa --rtype=1 --racqa=0
resv register $one --nrkey=0xa --rrega=0
refused access read $one
resv release $two --crkey=0xb --rtype=2 --rrela=0
access write $one
resv acquire $one --crkey=0xa --rtype=6 --racqa=0
access write $two
resv register $two --crkey=0xb --rrega=1
refused access read $two
resv release $one --crkey=0xa --rrela=1
access write $two
resv report $two --eds
grep -q '^ *regctl *: 0' /tmp/resv
detach
echo "all is as it was written"
