//! Tests of the numbers of places and their addresses.

use crate::index::{CHUNKS, ENTRIES, NOWHERE, Places};

#[test]
fn a_number_stands_for_the_address_of_one_place() {
    let places = Places::new();
    let begins = [(0, 0x1000), (1, 0x9_0000_0000), (CHUNKS - 1, 0x7f00_0000_0000)];
    let earlier = |chunk| 1000 * chunk;
    begins.iter().for_each(|&(chunk, begin)| places.add::<[u64; 3]>(chunk, begin, earlier(chunk)));
    for (chunk, begin) in begins {
        for entry in [0, 1, 1000, ENTRIES - 1] {
            let number = Places::number(chunk, entry);
            assert_ne!(number, NOWHERE);
            assert_eq!(places.address::<[u64; 3]>(number), begin + 24 * entry);
            assert_eq!(places.in_order(number) as usize, earlier(chunk) + entry);
        }
    }
}

#[test]
#[should_panic(expected = "no numbers for so many places")]
fn a_chunk_has_a_last_place() {
    Places::number(0, ENTRIES);
}
