//! Opening files, and what is particular to them.

use crate::common::{SECTOR, thread};
use floe_device::{Action, Device, FileDevice, FileOptions, OpenError, Operation, Pool, Ring};

fn made(size: u64) -> FileOptions {
    FileOptions { size: Some(size), create: true, direct: true, read_only: false }
}

fn existing() -> FileOptions {
    FileOptions { direct: true, ..FileOptions::default() }
}

#[test]
fn a_file_is_made_sparse_and_keeps_its_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk=a:b");
    let (ring, pool) = thread();
    let mut device = FileDevice::open(&ring, &pool, &path, made(1 << 30)).unwrap();
    assert_eq!(device.size_bytes(), 1 << 30);
    crate::common::write(&ring, &pool, &mut device, 1 << 20, &[7; 2 * SECTOR]).unwrap();
    drop(device);
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
    assert_eq!(mode & 0o777, 0o600, "it is for its owner");
    let blocks = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path).unwrap());
    assert!(blocks * 512 < 1 << 20, "{blocks} blocks are not sparse");
    let mut device = FileDevice::open(&ring, &pool, &path, existing()).unwrap();
    assert_eq!(
        crate::common::read(&ring, &pool, &mut device, 1 << 20, 2 * SECTOR).unwrap(),
        [7; 2 * SECTOR]
    );
}

#[test]
fn a_file_in_use_cannot_be_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let (ring, pool) = thread();
    let first = FileDevice::open(&ring, &pool, &path, made(8192)).unwrap();
    let error = FileDevice::open(&ring, &pool, &path, existing()).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    assert!(error.to_string().contains(path.to_str().unwrap()));
    drop(first);
    let read_only = FileOptions { read_only: true, ..existing() };
    let _reader = FileDevice::open(&ring, &pool, &path, read_only.clone()).unwrap();
    let _second = FileDevice::open(&ring, &pool, &path, read_only).unwrap();
    assert!(FileDevice::open(&ring, &pool, &path, existing()).is_err());
}

#[test]
fn wrong_files_are_refused_by_name_and_size() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let (ring, pool) = thread();
    let refused = |options| FileDevice::open(&ring, &pool, &path, options).unwrap_err().to_string();
    assert!(refused(existing()).contains("No such file"));
    let sizeless = FileOptions { create: true, ..existing() };
    assert!(refused(sizeless).contains("give a size to create it"));
    assert!(refused(made(1000)).contains("1000 bytes is not a positive multiple of 512"));
    assert!(!path.exists());
    std::fs::write(&path, [1; 8192]).unwrap();
    let error = refused(made(4096));
    assert!(error.contains("8192") && error.contains("4096"), "{error}");
    std::fs::write(&path, [1; 8000]).unwrap();
    assert!(refused(existing()).contains("8000"));
    std::fs::write(&path, []).unwrap();
    assert!(refused(existing()).contains("0 bytes"));
    let error = FileDevice::open(&ring, &pool, directory.path(), existing()).unwrap_err();
    assert!(matches!(error, OpenError::WrongKind { .. }), "{error}");
}

#[test]
fn a_read_only_device_refuses_writes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    std::fs::write(&path, [1; 8192]).unwrap();
    let (ring, pool) = thread();
    let options = FileOptions { read_only: true, ..existing() };
    let mut device = FileDevice::open(&ring, &pool, &path, options).unwrap();
    assert!(crate::common::write(&ring, &pool, &mut device, 0, &[2; SECTOR]).is_err());
    assert_eq!(crate::common::read(&ring, &pool, &mut device, 0, SECTOR).unwrap(), [1; SECTOR]);
}

#[test]
fn slices_that_are_not_aligned_work_with_direct_files() {
    let directory = tempfile::tempdir().unwrap();
    let (ring, pool) = thread();
    let mut device =
        FileDevice::open(&ring, &pool, directory.path().join("disk"), made(1 << 16)).unwrap();
    let bytes: Vec<u8> = (0..2 * SECTOR).map(|i| (i / 7) as u8).collect();
    let buffer = pool.allocate(4 * SECTOR);
    assert!(device.is_direct(), "the test directory takes direct I/O");
    let askew = buffer.slice(16..16 + 2 * SECTOR);
    askew.copy_from(&bytes);
    crate::common::run(
        &ring,
        &mut device,
        4096,
        Action::Write { from: askew.clone(), durable: true },
    )
    .unwrap();
    buffer.whole().fill_zero();
    crate::common::run(&ring, &mut device, 4096, Action::Read(askew.clone())).unwrap();
    assert_eq!(askew.to_vec(), bytes);
    assert_eq!(buffer.slice(16 + 2 * SECTOR..4 * SECTOR).to_vec(), vec![0; 2 * SECTOR - 16]);
}

#[test]
fn a_file_that_shrank_is_an_error_and_not_zeros() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let (ring, pool) = thread();
    let mut device = FileDevice::open(&ring, &pool, &path, made(1 << 16)).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(8192).unwrap();
    let error = crate::common::read(&ring, &pool, &mut device, 4096, 4 * SECTOR).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
}

#[test]
fn dropping_a_device_waits_for_the_kernel_to_leave_its_buffers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let (ring, pool) = (Ring::new(8).unwrap(), Pool::new(0));
    let mut device = FileDevice::open(&ring, &pool, &path, made(1 << 20)).unwrap();
    for token in 0..100 {
        let from = pool.allocate(SECTOR).whole();
        from.copy_from(&[token as u8; SECTOR]);
        device.submit(Operation {
            token,
            offset: token * SECTOR as u64,
            action: Action::Write { from, durable: false },
        });
    }
    assert_eq!(device.in_flight(), 100);
    drop(device);
    assert_eq!(pool.stats().fallback_bytes, 0);
    let content = std::fs::read(&path).unwrap();
    assert!((0..100).all(|i| content[i * SECTOR..][..SECTOR] == [i as u8; SECTOR]));
}

#[test]
fn two_devices_on_one_ring_get_their_own_completions() {
    let directory = tempfile::tempdir().unwrap();
    let (ring, pool) = thread();
    let open =
        |name| FileDevice::open(&ring, &pool, directory.path().join(name), made(1 << 20)).unwrap();
    let (mut left, mut right) = (open("left"), open("right"));
    for token in 0..200 {
        let offset = token * SECTOR as u64;
        let write = |byte| Action::Write {
            from: crate::common::slice(&pool, &[byte; SECTOR]),
            durable: false,
        };
        left.submit(Operation { token, offset, action: write(1) });
        right.submit(Operation { token: token + 1000, offset, action: write(2) });
    }
    let tokens = |device: &mut FileDevice| {
        let done = crate::common::finish(&ring, device, 200);
        let mut tokens: Vec<u64> = done.iter().map(|completion| completion.token).collect();
        tokens.sort_unstable();
        tokens
    };
    assert_eq!(tokens(&mut left), (0..200).collect::<Vec<_>>());
    assert_eq!(tokens(&mut right), (1000..1200).collect::<Vec<_>>());
    assert_eq!(crate::common::read(&ring, &pool, &mut left, 4096, SECTOR).unwrap(), [1; SECTOR]);
}
