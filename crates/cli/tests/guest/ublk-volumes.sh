# Several volumes of one server: with memory and more threads than the guest has processors, one read-only, one shared with
# clients, one with XFS. The disks are /dev/vda, the shared volume, /dev/vdb, the cache, /dev/vdc, to be read only, and
# /dev/vdd, for XFS.
dd if=/files/floe of=/dev/vdc bs=1M count=8 2>/dev/null || fail 'the disk to read cannot be written'
cat >/tmp/floe.toml <<'TOML'
cache = "/dev/vdb"
write = "back"
memory = "16MiB"
memory-write = "back"
threads = 3
state-dir = "/tmp/state"
listen = ["nbd+unix:///?socket=/run/nbd.sock"]

[[volume]]
name = "pictures"
backing = "/dev/vda"
attach = "ublk"
share = true

[[volume]]
name = "read"
backing = "/dev/vdc"
attach = "ublk"
read-only = true

[[volume]]
name = "own"
backing = "/dev/vdd"
attach = "ublk"
TOML
begin() {
    : >/tmp/device
    /files/floe attach --config /tmp/floe.toml >/tmp/device 2>>/tmp/log &
    SERVER=$!
    for _ in $(seq 600); do
        [ "$(grep -c ublkb /tmp/device)" -lt 3 ] || break
        kill -0 $SERVER 2>/dev/null || fail 'the server has ended'
        sleep 0.1
    done
}
begin
for name in pictures read own; do
    queues=$(find "/sys/block/$(basename "$(readlink -f /dev/floe/$name)")/mq" -mindepth 1 -maxdepth 1 | wc -l)
    [ "$queues" = 2 ] || fail "$name has $queues queues"
done
grep -q own /tmp/device && fail 'a volume that is not shared is offered'

[ "$(blockdev --getro /dev/floe/read)" = 1 ] || fail 'it is not read-only'
cmp -n $((8 << 20)) /dev/floe/read /files/floe || fail 'other data than on the disk'
dd if=/dev/zero of=/dev/floe/read bs=4k count=1 2>/dev/null && fail 'a read-only device was written'

# A client sees what was written to the shared device, and the other way round.
/programs/nbd-client -unix /run/nbd.sock /dev/nbd0 -N pictures >/dev/null || fail 'no client'
dd if=/files/floe of=$NAME bs=64k count=16 oflag=direct 2>/dev/null || fail 'no write'
dd if=/dev/nbd0 of=/tmp/found bs=64k count=16 iflag=direct 2>/dev/null || fail 'no read by the client'
cmp -n $((1 << 20)) /tmp/found /files/floe || fail 'the client reads other data'
dd if=/files/exercise of=/dev/nbd0 bs=4k count=2 oflag=direct conv=notrunc 2>/dev/null || fail 'no write by the client'
dd if=$NAME of=/tmp/found bs=4k count=2 iflag=direct 2>/dev/null || fail 'no read'
cmp -n 8192 /tmp/found /files/exercise || fail 'the device reads other data than the client wrote'
/programs/nbd-client -d /dev/nbd0 >/dev/null

/programs/mkfs.xfs -q /dev/floe/own || fail 'no XFS'
mount -t xfs -o discard /dev/floe/own /mnt || fail 'XFS cannot be mounted'
/files/exercise write /mnt/random1 1 & ONE=$!
/files/exercise write /mnt/random2 2 || fail 'wrong data'
wait $ONE || fail 'wrong data'
/files/load /mnt 2 >>/tmp/waits &
LOAD=$!

# The devices of a server that is killed find each its volume again.
sleep 1
kill -9 $SERVER
wait $SERVER
begin
touch /mnt/enough
wait $LOAD || fail 'the load has failed'
rm /mnt/load0 /mnt/load1 /mnt/enough
fstrim /mnt || fail 'no trim'
umount /mnt || fail 'it cannot be unmounted'
echo 3 >/proc/sys/vm/drop_caches
cmp -n $((8 << 20)) /dev/floe/read /files/floe || fail 'other data than on the disk after a kill'
/files/floe detach $NAME 2>/tmp/refused && fail 'one of several volumes was detached'
grep -q 'serves 3 volumes' /tmp/refused || fail "$(cat /tmp/refused)"
/files/floe stop || fail 'it cannot be stopped'
wait $SERVER || fail 'the server has failed'
gone
[ -z "$(ls /dev/floe)" ] || fail 'a name is still there'

begin
mount -t xfs -o ro,norecovery /dev/floe/own /mnt || fail 'XFS cannot be mounted again'
/files/exercise check /mnt/random1 1 || fail 'wrong data in another session'
/files/exercise check /mnt/random2 2 || fail 'wrong data in another session'
umount /mnt
/programs/xfs_repair -n /dev/floe/own >/tmp/repair 2>&1 || fail "XFS is damaged: $(cat /tmp/repair)"
/files/floe stop || fail 'it cannot be stopped'
wait $SERVER

# One device that cannot be taken over: the one made before it goes again.
begin
READ=$(readlink -f /dev/floe/read)
kill -9 $SERVER
wait $SERVER
for name in pictures own; do
    /files/floe detach "$(readlink -f /dev/floe/$name)" || fail "$name, which waits, was not detached"
done
grep -v read-only /tmp/floe.toml >/tmp/other.toml
/files/floe attach --config /tmp/other.toml >/tmp/device 2>/tmp/refused && fail 'a device was taken over with other rights'
grep -q 'waits for volume "read"' /tmp/refused || fail "$(cat /tmp/refused)"
[ "$(echo /dev/ublkb*)" = "$READ" ] || fail "there are $(echo /dev/ublkb*)"
begin
/files/floe stop || fail 'it cannot be stopped'
wait $SERVER || fail 'the server has failed'
[ -z "$(ls /dev/floe)" ] || fail 'a name is still there'
