//! Comparison of the index with a simple map.

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
            let spot = |key| index.spot(hash(key), lanes[&key], |place| place == map[&key]).0;
            match (step, map.contains_key(&key)) {
                (0, true) => index.remove(spot(key)),
                (1, true) => index.replace(spot(key), place),
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
                assert_eq!(found.map(|(_, place)| place), map.get(&key).copied());
            }
        }
        for (key, place) in map {
            let (spot, found) = index.spot(hash(key), lanes[&key], |found| found == place);
            assert_eq!(found, place);
            index.remove(spot);
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

#[test]
fn a_key_far_from_its_first_bucket_is_removed_as_any_other() {
    let index = Index::with_room(1000);
    // All of one first bucket: the last ones are further on than a lane can say.
    let hash = |key: u32| Hash32(key % 5);
    let lanes: Vec<_> = (0..250).map(|key| index.insert(hash(key), key + 1)).collect();
    assert!(lanes[249] == lanes[248] && lanes[0] != lanes[1], "the lanes of far keys are alike");
    let finds = |key: u32| index.find(hash(key), |place| place == key + 1).is_some();
    for key in (0..250).rev().step_by(2).chain((0..250).step_by(2)) {
        assert!(finds(key));
        let spot = |place| index.spot(hash(key), lanes[key as usize], |found| found == place).0;
        index.replace(spot(key + 1), 1000);
        assert!(!finds(key));
        index.remove(spot(1000));
    }
    let is_empty = |number| index.bucket(number).tags().matching(hash(0)).first().is_none();
    assert!((0..100).all(is_empty) && !index.bucket(0).tags().were_passed_by());
}
