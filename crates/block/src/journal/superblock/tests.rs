//! Tests that the superblock is written and read again, and is refused where it is damaged or
//! impossible.

use floe_device::{Fact, FactKind, Identity};

use super::Samples;
use super::*;
use crate::geometry::VolumeId;

fn superblock() -> Superblock {
    let volume = |id: u16, name: &str| Volume {
        identity: Identity::of([
            Fact::number(FactKind::Inode, 7),
            Fact::text(FactKind::Birth, name),
        ]),
        marker: 77,
        samples: Samples { of_bytes: 12_345 << 9, sums: vec![9, 0, 0x0403_0201] },
        ..Volume::new(VolumeId(id), name, 12_345 << 9)
    };
    Superblock {
        id: *b"0123456789abcdef",
        generation: 258,
        session: 3,
        clean: true,
        void: false,
        retired: None,
        layout: Layout::new(&BlockSizes::default(), 1 << 30, 4).unwrap(),
        cache_bytes: None,
        calibrated: None,
        stack: 0,
        next_stack: 0,
        companions: Vec::new(),
        volumes: vec![volume(0, "data"), volume(255, &"é".repeat(32))],
    }
}

#[test]
fn a_superblock_is_read_as_it_was_written() {
    let superblock = superblock();
    let bytes = superblock.encode().unwrap();
    assert!(matches!(Superblock::decode(&bytes), Copy::Good(found) if found == superblock));
    assert_eq!(superblock.offset(), 0);
    // As docs/format.md draws it.
    assert_eq!(bytes[8..32], *b"FloeBlk\n\x03\0\0\0\x01\0\0\0\x02\x01\0\0\0\0\0\0");
    assert_eq!(bytes[40..64], *b"0123456789abcdef\x04\0\0\0\x78\0\0\0");
    assert_eq!(bytes[96..4096], [0; 4000]);
    assert_eq!(
        bytes[4096..4104],
        *b"\x40\0\0\0\x04\0\x02\x03",
        "64 bytes, number 0, 2 facts, 3 samples"
    );
    assert_eq!(bytes[4104..4120], [12_345u64 << 9, 77].map(u64::to_le_bytes).concat());
    assert_eq!(bytes[4120..4136], [12_345u64 << 9, 1 << 56 | 7].map(u64::to_le_bytes).concat());
    assert_eq!(bytes[4136 + 8..][..12], [9u32, 0, 0x0403_0201].map(u32::to_le_bytes).concat());
    assert_eq!(bytes[4156..4160], *b"data");
}

#[test]
fn a_calibration_is_read_as_it_was_written() {
    let calibrated = Calibrated { write_cost: 3.5, target: 0.125, target_bytes: 0.25 };
    let superblock = Superblock { calibrated: Some(calibrated), ..superblock() };
    let bytes = superblock.encode().unwrap();
    assert!(matches!(Superblock::decode(&bytes), Copy::Good(found) if found == superblock));
    // As docs/format.md draws it.
    assert_eq!(bytes[20], 5);
    assert_eq!(bytes[96..120], [3.5f64, 0.125, 0.25].map(f64::to_le_bytes).concat());
    let impossible =
        Superblock { calibrated: Some(Calibrated { target: 2.0, ..calibrated }), ..superblock };
    assert!(matches!(Superblock::decode(&impossible.encode().unwrap()), Copy::Nonsense(_)));
}

#[test]
fn a_size_is_read_as_it_was_written_and_has_room_for_data() {
    let mut superblock = superblock();
    let layout = superblock.layout.clone();
    let (all, group_bytes) = (layout.data_bytes(), layout.sizes().largest() * SECTOR_BYTES);
    assert_eq!((superblock.cache_bytes, superblock.data_bytes()), (None, all));
    let least = layout.data_offset_bytes(0) + 4 * group_bytes;
    for (bytes, data_bytes) in [
        (least, 4 * group_bytes),
        (least + 4 * group_bytes - 1, 4 * group_bytes),
        (layout.end_bytes() - 1, all - 4 * group_bytes),
    ] {
        superblock.set_cache_bytes(bytes);
        let written = superblock.encode().unwrap();
        assert!(matches!(Superblock::decode(&written), Copy::Good(found) if found == superblock));
        assert_eq!(superblock.data_bytes(), data_bytes, "{bytes}");
        // As docs/format.md draws it.
        assert_eq!(written[3976..3984], bytes.to_le_bytes());
    }
    superblock.set_cache_bytes(least - 1);
    let Copy::Nonsense(said) = Superblock::decode(&superblock.encode().unwrap()) else {
        panic!("there is no room for data")
    };
    assert!(said.contains("which has no room for data"), "{said}");
    superblock.set_cache_bytes(layout.end_bytes());
    assert_eq!((superblock.cache_bytes, superblock.data_bytes()), (None, all));
}

#[test]
fn companions_are_read_as_they_were_written_and_long_names_are_cut() {
    let companion = |id: u8, name: &str| Companion {
        id: [id; 16],
        name: name.to_owned(),
        above: id == 9,
        session: 6,
        passed: None,
    };
    let named = companion(7, "file:/dev/sdc,write=back");
    let superblock = Superblock {
        companions: vec![named.clone(), companion(9, &"é".repeat(200))],
        ..superblock()
    };
    let superblock = Superblock { stack: 0x0403_0201, next_stack: 5, ..superblock };
    let bytes = superblock.encode().unwrap();
    let Copy::Good(found) = Superblock::decode(&bytes) else { panic!("it can be read") };
    assert_eq!(found.companions, [named.clone(), companion(9, &"é".repeat(116))]);
    for passed in [None, Some(false), Some(true)] {
        let companions = vec![Companion { passed, ..named.clone() }];
        let bytes = Superblock { companions: companions.clone(), ..superblock.clone() }.encode();
        let Copy::Good(found) = Superblock::decode(&bytes.unwrap()) else { panic!("it is read") };
        assert_eq!(found.companions, companions);
    }
    assert_eq!((found.stack, found.next_stack), (0x0403_0201, 5));
    assert_eq!(found.volumes, superblock.volumes);
    assert_eq!(bytes[120..128], *b"\x01\x02\x03\x04\x05\0\0\0");
    // As docs/format.md draws it.
    assert_eq!(
        bytes[128..152],
        *b"\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x01\0\x18\0\x06\0\0\0"
    );
    assert_eq!(bytes[152..157], *b"file:");
    assert_eq!(bytes[128 + 256 + 16], 3, "one that is above");
    let crowd = Superblock { companions: vec![companion(1, "x"); 16], ..superblock };
    assert!(crowd.encode().unwrap_err().to_string().contains("15"));
}

#[test]
fn any_flipped_bit_is_noticed() {
    let mut bytes = superblock().encode().unwrap();
    for bit in (0..8 * 200).chain((0..8 * SUPERBLOCK_BYTES).step_by(997)) {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let found = Superblock::decode(&bytes);
        assert!(matches!(found, Copy::Damaged { .. } | Copy::Foreign), "bit {bit}: {found:?}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

/// Returns the result of decoding a superblock with one byte changed and its checksum corrected.
fn changed(at: usize, to: u8) -> Copy {
    let mut bytes = superblock().encode().unwrap();
    bytes[at] = to;
    let sum = checksum(&bytes[8..]);
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
    Superblock::decode(&bytes)
}

#[test]
fn what_cannot_be_is_refused_though_its_checksum_is_right() {
    assert!(matches!(changed(16, 4), Copy::Newer(4)));
    for (at, to, part) in [
        (60, 0, "no block size given"),
        (62, 1, "is not a power of two"),
        (56, 0, "0 shards"),
        (64, 1, "sectors"),
        (4156, 0xff, "name for volume 0"),
        (4096 + 4, 65, "name for volume 0"),
        (4096 + 6, 9, "more of volume 0 than its record has room for"),
        (4096 + 7, 99, "more of volume 0 than its record has room for"),
        (4096, 8, "a record of volume 0 that is too long or short"),
        (4096 + 3, 1, "a volume of number 256"),
        (4160 + 2, 0, "a volume of number 0"),
    ] {
        match changed(at, to) {
            Copy::Nonsense(what) => assert!(what.contains(part), "{what}"),
            found => panic!("byte {at} = {to}: {found:?}"),
        }
    }
}

#[test]
fn volumes_that_do_not_fit_are_named() {
    let mut superblock = superblock();
    superblock.volumes[1].id = VolumeId(256);
    assert!(superblock.encode().unwrap_err().to_string().contains("volume 256"));
    superblock.volumes[1] =
        Volume { name: "x".repeat(65), id: VolumeId(1), ..superblock.volumes[0].clone() };
    assert!(
        superblock.encode().unwrap_err().to_string().ends_with("its name has more than 64 bytes")
    );
}

#[test]
fn as_much_is_written_of_many_volumes_as_there_is_room_for() {
    let names = ["v".repeat(8), "v".repeat(64)];
    for (count, name, facts, samples) in
        [(100, 0, 6, 24), (180, 0, 6, 16), (256, 0, 6, 6), (256, 1, 2, 0)]
    {
        let facts_there = (1..=6).map(|kind| kind << 56 | 5);
        let volumes = (0..count).map(|id| Volume {
            identity: Identity::from_words(facts_there.clone()),
            samples: Samples { of_bytes: 4 << 20, sums: (1..=24).collect() },
            ..Volume::new(VolumeId(id), &names[name], 1 << 30)
        });
        let superblock = Superblock { volumes: volumes.collect(), ..superblock() };
        let Copy::Good(found) = Superblock::decode(&superblock.encode().unwrap()) else {
            panic!("readable")
        };
        assert_eq!(found.volumes.len(), usize::from(count));
        for volume in &found.volumes {
            let had = &superblock.volumes[usize::from(volume.id.0)];
            assert_eq!((&volume.name, volume.bytes), (&had.name, had.bytes));
            assert_eq!(
                volume.identity.words().collect::<Vec<_>>(),
                had.identity.words().take(facts).collect::<Vec<_>>()
            );
            assert_eq!(volume.samples.sums, had.samples.sums[..samples], "{count} volumes");
        }
    }
}

#[test]
fn a_cache_can_say_that_it_must_not_be_used() {
    for at in [0, 1_700_000_000] {
        let superblock = Superblock { retired: Some(at), ..superblock() };
        let bytes = superblock.encode().unwrap();
        assert!(matches!(Superblock::decode(&bytes), Copy::Good(found) if found == superblock));
        assert_eq!(bytes[20], 9);
        assert_eq!(bytes[3968..3976], at.to_le_bytes());
    }
}
