# The device is swap, and a program has more than memory: memory is freed by writing to the device, which the server must do
# without waiting for memory itself.
attach --write back
mkswap $DEVICE >/dev/null || fail 'no swap'
swapon $DEVICE || fail 'it cannot be used as swap'
grep -q ublkb0 /proc/swaps || fail 'it is no swap'
/files/floe detach $DEVICE 2>/tmp/refused && fail 'a device with swap was detached'
grep -q 'swap on /dev/ublkb0' /tmp/refused || fail "$(cat /tmp/refused)"
/files/hog $MIB 50 || fail 'other data in memory than was written'
awk '$1 == "pswpout" { exit $2 < 8192 }' /proc/vmstat || fail 'little was swapped'
swapoff $DEVICE || fail 'it cannot be freed'
detach
