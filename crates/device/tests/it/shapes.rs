//! Sizes and holes that devices report.

use std::io::ErrorKind;
use std::path::Path;

use crate::common::{SECTOR, thread};
use floe_device::{
    Action, Device, Extent, FileDevice, FileOptions, MemoryDevice, OpenError, Pool, Ring, Role,
    Source, Spec,
};

const ROLE: Role = Role::Backing { read_only: false };

fn source(text: String) -> Source {
    text.parse::<Spec>().unwrap().prepare(ROLE).unwrap()
}

fn set_len(path: &Path, bytes: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

fn kind(error: std::io::Result<impl Sized>) -> ErrorKind {
    error.err().expect("an error").kind()
}

#[test]
fn a_file_grows_and_shrinks_under_an_open_handle() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let source = source(format!("file:{},size=64KiB,medium=pmem", path.display()));
    let (ring, pool) = thread();
    let mut device = source.open(&ring, &pool).unwrap();
    let bytes = [9; SECTOR];

    set_len(&path, 128 << 10);
    assert_eq!(kind(device.set_size(128 << 10)), ErrorKind::InvalidInput, "nobody has looked yet");
    assert_eq!(source.refresh().unwrap(), 128 << 10);
    assert_eq!((source.size_bytes(), device.size_bytes()), (128 << 10, 64 << 10));
    assert_eq!(source.open(&ring, &pool).unwrap().size_bytes(), 128 << 10);
    assert!(crate::common::write(&ring, &pool, &mut device, 64 << 10, &bytes).is_err());
    device.set_size(128 << 10).unwrap();
    crate::common::write(&ring, &pool, &mut device, 64 << 10, &bytes).unwrap();
    assert_eq!(crate::common::read(&ring, &pool, &mut device, 64 << 10, SECTOR).unwrap(), bytes);

    set_len(&path, 32 << 10);
    // The size it still has is no longer true: an error, not zeros or a panic.
    let error = crate::common::read(&ring, &pool, &mut device, 64 << 10, SECTOR).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(source.refresh().unwrap(), 32 << 10);
    device.set_size(32 << 10).unwrap();
    let error = crate::common::read(&ring, &pool, &mut device, 64 << 10, SECTOR).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);

    for odd in [100, 0] {
        set_len(&path, odd);
        assert_eq!(kind(source.refresh()), ErrorKind::InvalidData);
        assert_eq!(source.size_bytes(), 32 << 10);
    }
    for odd in [0, 1000, 64 << 10] {
        assert_eq!(kind(device.set_size(odd)), ErrorKind::InvalidInput);
        assert_eq!(device.size_bytes(), 32 << 10);
    }
}

#[test]
fn a_stripe_grows_once_all_its_members_have() {
    let directory = tempfile::tempdir().unwrap();
    let paths = ["a", "b"].map(|name| directory.path().join(name));
    let [a, b] = &paths;
    let text = format!("stripe:{}+{},chunk=64KiB", a.display(), b.display());
    paths.iter().for_each(|path| std::fs::write(path, vec![1; 128 << 10]).unwrap());
    let source = source(text.clone());
    let (ring, pool) = thread();
    let mut device = source.open(&ring, &pool).unwrap();
    set_len(a, 256 << 10);
    assert_eq!(source.refresh().unwrap(), 256 << 10);
    assert_eq!(kind(device.set_size(512 << 10)), ErrorKind::InvalidInput);
    assert_eq!(device.size_bytes(), 256 << 10);
    set_len(b, 256 << 10);
    assert_eq!(source.refresh().unwrap(), 512 << 10);
    device.set_size(512 << 10).unwrap();
    crate::common::write(&ring, &pool, &mut device, (512 << 10) - 4096, &[7; SECTOR]).unwrap();
    assert_eq!(std::fs::read(b).unwrap()[(256 << 10) - 4096..], [7; SECTOR]);
    assert_eq!(
        crate::common::read(&ring, &pool, &mut device, 64 << 10, SECTOR).unwrap(),
        [1; SECTOR]
    );
    device.set_size(4096).unwrap();
    assert!(crate::common::read(&ring, &pool, &mut device, 64 << 10, SECTOR).is_err());
    assert_eq!(kind(device.set_size(512)), ErrorKind::InvalidInput);
    drop((device, source));

    let cut =
        text.replace("64KiB", "64KiB,size=448KiB").parse::<Spec>().unwrap().prepare(ROLE).unwrap();
    assert_eq!(cut.refresh().unwrap(), 448 << 10);
    set_len(b, 128 << 10);
    assert!(cut.refresh().unwrap_err().to_string().contains("262144"));
}

#[test]
fn memory_grows_for_all_its_handles() {
    let source = source("memory:64KiB".into());
    let error = source.refresh().unwrap_err();
    assert!(error.to_string().contains("memory device cannot be resized"), "{error}");
    let (ring, pool) = thread();
    let mut handles = [(); 2].map(|()| source.open(&ring, &pool).unwrap());
    let bytes = [9; SECTOR];
    assert_eq!(kind(handles[0].set_size(128 << 10)), ErrorKind::InvalidInput, "nobody let it grow");
    source.grow(128 << 10).unwrap();
    source.grow(4096).unwrap();
    assert_eq!((source.size_bytes(), handles[0].size_bytes()), (128 << 10, 64 << 10));
    assert!(crate::common::write(&ring, &pool, &mut handles[0], 64 << 10, &bytes).is_err());
    for handle in &mut handles {
        handle.set_size(128 << 10).unwrap();
    }
    crate::common::write(&ring, &pool, &mut handles[0], 124 << 10, &bytes).unwrap();
    let mut late = source.open(&ring, &pool).unwrap();
    for handle in [&mut handles[1], &mut late] {
        assert_eq!(crate::common::read(&ring, &pool, handle, 124 << 10, SECTOR).unwrap(), bytes);
    }
    for wrong in [1 << 60, 1000] {
        assert!(source.grow(wrong).is_err());
        assert_eq!(source.size_bytes(), 128 << 10);
    }
}

#[test]
fn a_file_grows_when_it_is_told_to_and_a_stripe_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let file = source(format!("file:{},size=64KiB", path.display()));
    file.grow(32 << 10).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 64 << 10, "it does not become shorter");
    file.grow(128 << 10).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 128 << 10);
    assert_eq!(file.size_bytes(), 128 << 10);
    let error = file.grow(u64::MAX / 4096 * 4096).unwrap_err().to_string();
    assert!(error.contains("its file system has room for"), "{error}");
    assert_eq!(file.size_bytes(), 128 << 10);
    // A file may be as long and have its space yet to be found.
    let Err(OpenError::TooLittleSpace { room, .. }) = file.grow(u64::MAX / 4096 * 4096) else {
        panic!("there is not as much space");
    };
    let long = (room + room / 2).next_multiple_of(4096);
    set_len(&path, long);
    assert!(matches!(file.grow(long), Err(OpenError::TooLittleSpace { .. })));
    set_len(&path, 128 << 10);

    let paths = ["a", "b"].map(|name| directory.path().join(name));
    paths.iter().for_each(|path| std::fs::write(path, vec![1; 128 << 10]).unwrap());
    let stripe =
        source(format!("stripe:{}+{},chunk=64KiB", paths[0].display(), paths[1].display()));
    stripe.grow(256 << 10).unwrap();
    let error = stripe.grow(512 << 10).unwrap_err().to_string();
    assert!(error.contains("keeps its size while it is used"), "{error}");
}

/// All extents of a range, however many looks it takes.
fn extents(device: &mut dyn Device, start: u64, end: u64) -> Vec<Extent> {
    let (mut found, mut at) = (Vec::new(), start);
    while at < end {
        let before = found.len();
        device.allocation(at..end, &mut found);
        assert!(found[before..].iter().all(|extent| extent.bytes > 0));
        let more: u64 = found[before..].iter().map(|extent| extent.bytes).sum();
        assert!(more > 0, "every look finds something");
        at += more;
    }
    assert_eq!(at, end);
    found
}

fn file(ring: &Ring, pool: &Pool, path: &Path, size: u64) -> FileDevice {
    let options = FileOptions { size: Some(size), create: true, direct: true, read_only: false };
    FileDevice::open(ring, pool, path, options).unwrap()
}

#[test]
fn holes_of_a_file_are_found_and_data_is_never_called_a_hole() {
    const K: u64 = 1024;
    let directory = tempfile::tempdir().unwrap();
    let (ring, pool) = thread();
    let mut device = file(&ring, &pool, &directory.path().join("disk"), 1024 * K + 512);
    let (hole, data) = (Extent::hole, Extent::data);
    let end = 1024 * K + 512;
    assert_eq!(extents(&mut device, 0, end), [hole(end)]);
    crate::common::write(&ring, &pool, &mut device, 256 * K, &[1; 65536]).unwrap();
    assert_eq!(extents(&mut device, 0, end), [hole(256 * K), data(64 * K), hole(704 * K + 512)]);
    assert_eq!(extents(&mut device, 260 * K, 264 * K), [data(4 * K)]);
    assert_eq!(extents(&mut device, 252 * K, 260 * K), [hole(4 * K), data(4 * K)]);
    assert_eq!(extents(&mut device, 4 * K, 4 * K), []);
    let zero = Action::Zero { len: 32 * K, may_unmap: true, fast: false };
    crate::common::run(&ring, &mut device, 256 * K, zero).unwrap();
    assert_eq!(extents(&mut device, 0, 320 * K), [hole(288 * K), data(32 * K)]);
}

#[test]
fn one_look_at_a_file_in_many_pieces_ends() {
    let directory = tempfile::tempdir().unwrap();
    let (ring, pool) = thread();
    let mut device = file(&ring, &pool, &directory.path().join("disk"), 4 << 20);
    for at in (0..4 << 20).step_by(8192) {
        crate::common::write(&ring, &pool, &mut device, at, &[1; SECTOR]).unwrap();
    }
    let mut once = Vec::new();
    device.allocation(0..4 << 20, &mut once);
    assert!((1..=64).contains(&once.len()), "{} extents", once.len());
    let all = extents(&mut device, 0, 4 << 20);
    let data: u64 = all.iter().filter(|extent| !extent.zero).map(|extent| extent.bytes).sum();
    assert_eq!((all.len(), data), (1024, 2 << 20));
}

#[test]
fn holes_of_a_stripe_are_those_of_its_members_in_turn() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name| directory.path().join(name).display().to_string();
    let source =
        source(format!("stripe:{}+{},chunk=64KiB,size=16MiB,medium=pmem", path("a"), path("b")));
    let (ring, pool) = thread();
    let mut device = source.open(&ring, &pool).unwrap();
    crate::common::write(&ring, &pool, &mut device, 32 << 10, &[1; 65536]).unwrap();
    let found = extents(&mut device, 0, 128 << 10);
    assert_eq!(found, [Extent::hole(32 << 10), Extent::data(64 << 10), Extent::hole(32 << 10)]);
    let zeros: u64 =
        extents(&mut device, 0, 16 << 20).iter().filter(|e| e.zero).map(|e| e.bytes).sum();
    assert_eq!(zeros, (16 << 20) - 65536);
}

#[test]
#[should_panic(expected = "of a device of 4096 bytes")]
fn a_look_outside_the_device_panics() {
    MemoryDevice::new(4096).allocation(0..8192, &mut Vec::new());
}

#[test]
fn memory_is_data_and_zeroed_fast() {
    let (ring, pool) = thread();
    let mut device = MemoryDevice::new(8192);
    assert_eq!(extents(&mut device, 4096, 8192), [Extent::data(4096)]);
    device.write_at(0, &[1; 8192]);
    let fast = Action::Zero { len: 4096, may_unmap: false, fast: true };
    crate::common::run(&ring, &mut device, 4096, fast).unwrap();
    let expected = [[1; SECTOR], [0; SECTOR]].concat();
    assert_eq!(crate::common::read(&ring, &pool, &mut device, 0, 8192).unwrap(), expected);
}

#[test]
fn a_fast_zero_of_a_file_zeroes_or_says_that_it_cannot() {
    let (ring, pool) = thread();
    // The second is mostly a tmpfs, which cannot zero without giving up the space.
    for folder in [std::env::temp_dir(), "/dev/shm".into()].iter().filter(|folder| folder.is_dir())
    {
        let directory = tempfile::tempdir_in(folder).unwrap();
        let mut device = file(&ring, &pool, &directory.path().join("disk"), 65536);
        for may_unmap in [false, true] {
            crate::common::write(&ring, &pool, &mut device, 0, &[1; 65536]).unwrap();
            let zero = Action::Zero { len: 8192, may_unmap, fast: true };
            let left = match crate::common::run(&ring, &mut device, 4096, zero) {
                Ok(()) => 0,
                Err(error) if error.kind() == ErrorKind::Unsupported => 1,
                Err(error) => panic!("{error}"),
            };
            let expected = [[1; SECTOR], [left; SECTOR], [left; SECTOR], [1; SECTOR]].concat();
            let found = crate::common::read(&ring, &pool, &mut device, 0, 4 * SECTOR).unwrap();
            assert_eq!(found, expected, "{folder:?}, may_unmap: {may_unmap}");
        }
    }
}
