# The server is killed under a load, comes back, and the load goes on as if nothing had been.
attach --reconnect-delay=1 --ctrl-loss-tmo=600
echo attached
while [ ! -e /tmp/done ]; do
    /files/blocks /dev/nvme0n1 0 4 60 1
    echo round
done &
load=$!
# Says so once the connection was lost and is there again.
while [ "$(cat /sys/class/nvme/nvme0/state)" = live ]; do sleep 0.1; done
echo lost
while [ "$(cat /sys/class/nvme/nvme0/state)" != live ]; do sleep 0.1; done
echo back
touch /tmp/done
wait $load
detach
echo "all is as it was written"
