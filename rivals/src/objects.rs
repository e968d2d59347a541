//! Objects whose bytes follow from their names, and reads of them that are compared with these.

use std::ops::Range;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Objects of random reads, with their length.
pub const POINTS: (u64, u64) = (4, 64 << 20);
/// Objects that are scanned, with their length.
pub const SCANS: (u64, u64) = (4, 32 << 20);

pub fn path(load: &str, number: u64) -> Path {
    Path::from(format!("floe-rivals/{load}/{number}"))
}

/// The bytes of an object from an offset on: each 8 bytes are a hash of its name and their offset.
pub fn content(path: &Path, range: Range<u64>) -> Vec<u8> {
    let name =
        path.as_ref().bytes().fold(7u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(31));
    let word = |at: u64| ((at ^ name).wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes();
    let words: Vec<u8> = (range.start / 8..range.end.div_ceil(8)).flat_map(word).collect();
    let skipped = (range.start % 8) as usize;
    words[skipped..skipped + (range.end - range.start) as usize].to_vec()
}

pub async fn read(store: &dyn ObjectStore, path: &Path, range: Range<u64>) {
    let bytes = store.get_range(path, range.clone()).await.expect("the server answers");
    assert!(bytes == content(path, range.clone()), "{path} {range:?}: other bytes");
}

/// Reads of 4 KB at random places.
pub async fn points(store: &dyn ObjectStore) {
    let mut random = SmallRng::seed_from_u64(1);
    for _ in 0..100 {
        let path = path("points", random.random_range(0..POINTS.0));
        let at = random.random_range(0..POINTS.1 / 4096) * 4096;
        read(store, &path, at..at + 4096).await;
    }
}

/// Scans by reads of 128 KiB.
pub async fn scans(store: &dyn ObjectStore) {
    for number in 0..SCANS.0 {
        let path = path("scans", number);
        for at in (0..SCANS.1).step_by(128 << 10) {
            read(store, &path, at..at + (128 << 10)).await;
        }
    }
}
