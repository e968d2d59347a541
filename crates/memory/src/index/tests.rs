//! The index beside a map that is too simple to be wrong.

use std::collections::HashMap;

use proptest::prelude::*;

use crate::index::{Hash32, Index};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_index_is_a_map_from_hashes_to_places(
        steps in proptest::collection::vec((0..60u32, 0..3u8), 0..400),
    ) {
        let index = Index::with_room(40);
        // Few first buckets, and tags that differ little, so that buckets overflow and tags
        // collide.
        let hash = |key: u32| Hash32(((key % 3) << 30) | (key % 5));
        let (mut map, mut lanes) = (HashMap::new(), HashMap::new());
        for (place, (key, step)) in (1..).zip(steps) {
            match (step, map.contains_key(&key)) {
                (0, true) => assert_eq!(index.remove(hash(key), lanes[&key]), map[&key]),
                (1, true) => index.replace(lanes[&key], place),
                (_, false) if map.len() < 40 => {
                    lanes.insert(key, index.insert(hash(key), place));
                }
                _ => continue,
            }
            if step == 0 && map.contains_key(&key) {
                map.remove(&key);
            } else {
                map.insert(key, place);
            }
            for key in 0..60 {
                let found = index.find(hash(key), |found| map.get(&key) == Some(&found));
                assert_eq!(found, map.get(&key).copied());
            }
        }
        for (key, lane) in lanes {
            if map.remove(&key).is_some() {
                index.remove(hash(key), lane);
            }
        }
        let mut number = 0;
        loop {
            let tags = index.bucket(number).tags();
            assert!(!tags.were_passed_by());
            assert!((0..15).all(|key| tags.matching(hash(key)).first().is_none()));
            number = index.after(number);
            if number == 0 {
                break;
            }
        }
    }
}
