# A discovery connection that stays tells the host when a volume comes. The kernel's trace shows the event.
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null || mount -t debugfs debugfs /sys/kernel/debug
trace=/sys/kernel/tracing
[ -d $trace/events ] || trace=/sys/kernel/debug/tracing
echo 1 >$trace/events/nvme/nvme_async_event/enable
nvme_to discover --persistent | grep -q "subnqn: *$NAME"
[ "$(cat /sys/class/nvme/nvme0/cntrltype)" = discovery ]
echo attached
for _ in $(seq 600); do
    ! grep -q 'NVME_AEN=0x70f002' $trace/trace || break
    sleep 0.1
done
grep 'NVME_AEN=0x70f002' $trace/trace
[ "$(cat /sys/class/nvme/nvme0/state)" = live ]
/programs/nvme disconnect -d nvme0 >/dev/null
echo "all is as it was written"
