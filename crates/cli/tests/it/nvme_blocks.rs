//! Namespaces with logical blocks of 4 KiB.

use floe_testkit::PATIENCE;
use floe_testkit::nvme_host::tcp::Controller;
use floe_testkit::nvme_host::{Access, HostError, Range};

use crate::common::{Server, Volume, floe, floe_ok};

/// Identifier of the first volume's namespace with blocks of 4 KiB.
const LARGE: u32 = 4097;

fn controller(server: &Server) -> Controller {
    let address = server.nvme.strip_prefix("nvme-tcp://").expect("an address");
    let (address, name) = address.split_once('/').expect("a name");
    let access = Access { timeout: Some(PATIENCE), ..Access::new(address, name) };
    Controller::connect(&access).expect("a controller")
}

#[track_caller]
fn fails_with<T: std::fmt::Debug>(result: Result<T, HostError>, kind: u8, code: u8) {
    match result {
        Err(HostError::Command(error)) => {
            assert_eq!((error.status.kind(), error.status.code()), (kind, code), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_volume_with_blocks_of_4_kib_is_another_disk_with_the_same_data() {
    // The last 1,536 bytes are no whole block of 4 KiB.
    let content: Vec<u8> = (0..(1_u32 << 20) + 1536).map(|at| (at / 512) as u8).collect();
    let plain = Volume::new(&content, "through").with(&["--listen", "nvme-tcp://127.0.0.1:0"]);
    let server = plain.serve();
    let mut host = controller(&server);
    let small = host.namespace(1).expect("a namespace");
    assert_eq!((small.block_bytes, small.blocks), (512, 2051));
    server.end();

    let volume = plain.with(&["--nvme-block-size", "4KiB"]);
    let server = volume.serve();
    let log = server.log();
    assert!(log.contains("bytes=1536") && log.contains("out of reach"), "{log}");
    let mut host = controller(&server);
    assert_eq!(host.namespaces().expect("namespaces"), [LARGE]);
    let large = host.namespace(LARGE).expect("a namespace");
    assert_eq!((large.block_bytes, large.blocks), (4096, 256));
    assert_ne!(small.guid, large.guid, "a host must not go on where it was");
    host.set_queues(1).expect("queues");
    let mut queue = host.io_queue(1, 16).expect("an I/O queue");
    let range = |first, blocks| Range { namespace: LARGE, first, blocks };
    let read = queue.read(range(3, 2), 8192).expect("data");
    assert_eq!(read, content[3 * 4096..5 * 4096]);
    queue.write(range(255, 1), vec![7; 4096], true).expect("a write");
    assert_eq!(volume.backing()[255 * 4096..256 * 4096], [7; 4096]);
    assert_eq!(volume.backing()[256 * 4096..], content[256 * 4096..]);
    queue.write_zeroes(range(1, 1), false).expect("zeros");
    assert_eq!(volume.backing()[4096..8192], [0; 4096]);
    assert_eq!(volume.backing()[8192..3 * 4096], content[8192..3 * 4096]);
    fails_with(queue.read(range(256, 1), 4096), 0, 0x80); // beyond the end
    fails_with(queue.read(range(0, 1), 512), 0, 0x0f);

    // A host that has not noticed repeats commands of 512-byte blocks.
    let before = volume.backing();
    let old = Range { namespace: 1, first: 8, blocks: 8 };
    fails_with(queue.write_zeroes(old, true), 0, 0x0b);
    fails_with(queue.write(old, vec![1; 4096], true), 0, 0x0b);
    assert!(volume.backing() == before);

    let add = ["volume", "add", "more", "memory:4MiB", "--admin", &server.admin];
    let odd = floe(&[&add[..], &["--nvme-block-size", "1KiB"]].concat());
    let said = String::from_utf8(odd.stderr).expect("text");
    assert!(!odd.status.success() && said.contains("`1KiB` is not 512 or 4KiB"), "{said}");
    floe_ok(&[&add[..], &["--nvme-block-size", "4KiB"]].concat());
    assert_eq!(host.namespaces().expect("namespaces"), [LARGE, LARGE + 1]);
    floe_ok(&["volume", "add", "small", "memory:4MiB", "--admin", &server.admin]);
    assert_eq!(host.namespaces().expect("namespaces"), [3, LARGE, LARGE + 1]);
    let sizes = [3, LARGE, LARGE + 1].map(|id| host.namespace(id).expect("it is").block_bytes);
    assert_eq!(sizes, [512, 4096, 4096]);
    server.end();
}
