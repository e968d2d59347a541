//! What the tests share that have a process to themselves.

use floe_server::nbd_client::Client;
use floe_testkit::pattern;

/// Checks that a client's requests are answered, and rightly.
pub(crate) fn is_served(client: &mut Client, seed: u64) {
    let data = pattern(seed, 10_000);
    let mut read = vec![0; data.len()];
    client.write(4096 * seed, &data, false).unwrap();
    client.read(4096 * seed, &mut read).unwrap();
    assert!(read == data);
}

/// Memory of this process: the server's, and the test's.
pub(crate) fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
