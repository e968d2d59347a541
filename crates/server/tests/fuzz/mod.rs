//! Runs arbitrary client input through all code that parses it, for the fuzzer and for the tests.
//!
//! The first bytes of an input decide how it is cut and when the server answers; the rest is the
//! client's input. Three things must hold for any input: other cuts of the same bytes mean the
//! same; a session's memory stays within its bounds; at the end the budget has everything back.
//! `scripts/fuzz` runs it.

mod cut;
mod nvme;
mod parsing;
mod seeds;
mod serving;

use std::sync::Arc;

use floe_nbd::export::{Export, Exports};
use floe_nbd::handshake::Tls;

use crate::protocol::Nbd;
use cut::{Cut, Random};
use parsing::meaning;
pub use seeds::seeds;
use serving::answers;

/// Longest read or write. Short inputs must be able to reach the memory bounds.
const LONGEST_BYTES: u32 = 64 << 10;

/// Bytes of an input before the client's own.
const PREFIX_BYTES: usize = 9;

/// Runs one input and checks the three properties.
///
/// # Panics
/// When a property does not hold.
pub fn run(input: &[u8]) {
    let Some((prefix, sent)) = input.split_at_checked(PREFIX_BYTES) else { return };
    let seed = u64::from_le_bytes(prefix[1..].try_into().expect("eight bytes"));
    let tls = match prefix[0] % 5 {
        0 => Tls::Off,
        1 => Tls::Offered,
        2 => Tls::Required,
        kind => return nvme::run(kind == 4, sent, seed),
    };
    let whole = meaning(sent, tls, &mut Cut { left: usize::MAX, random: Random(0) }, false);
    let cut = meaning(sent, tls, &mut Cut { left: 0, random: Random(seed) }, true);
    assert_eq!(whole, cut, "cut into pieces it means something else");
    if tls == Tls::Off {
        let (at_once, broken) =
            answers(&Nbd::default(), sent, &mut Cut { left: usize::MAX, random: Random(0) }, None);
        let (cut, cut_broken) =
            answers(&Nbd::default(), sent, &mut Cut { left: 0, random: Random(seed) }, None);
        assert_eq!(broken, cut_broken);
        // A client that breaks the protocol may lose the last answers.
        let same = if broken { at_once.len().min(cut.len()) } else { at_once.len().max(cut.len()) };
        assert_eq!(
            at_once.get(..same),
            cut.get(..same),
            "cut into pieces it is answered otherwise"
        );
        answers(
            &Nbd::default(),
            sent,
            &mut Cut { left: 0, random: Random(seed) },
            Some(Random(!seed)),
        );
    }
}

fn exports() -> Arc<Exports> {
    let disk = Export { maximum_block_bytes: LONGEST_BYTES, ..Export::new("disk", 1 << 20) };
    let sealed = Export { read_only: true, minimum_block_bytes: 512, ..disk.clone() };
    Arc::new(
        Exports::new(vec![disk, Export { volume: 1, name: "sealed".into(), ..sealed }])
            .expect("good exports"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversations_mean_the_same_however_they_are_cut() {
        for input in seeds() {
            for seed in 0..20 {
                let mut input = input.clone();
                input[1] = seed;
                run(&input);
            }
        }
    }

    #[test]
    fn conversations_broken_off_or_damaged_anywhere_break_nothing() {
        let mut random = Random(1);
        for input in seeds() {
            for _ in 0..100 {
                let mut input = input.clone();
                input.truncate(1 + random.next() as usize % input.len());
                let at = random.next() as usize % input.len();
                input[at] = random.next() as u8;
                run(&input);
            }
        }
    }
}
