//! Measures the times of [`Machine`] between two cores of this machine.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{CoherenceError, Machine};

/// A word in a pair of cache lines of its own, since processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Word(AtomicU64);

/// Words that pass between the cores in one round. They fit a core's first cache.
const WORDS: usize = 128;
/// Rounds that count at least, and at most.
const ROUNDS_MIN: usize = 100;
const ROUNDS_MAX: usize = 4000;
/// Time after which no round begins.
const TIME_MAX: Duration = Duration::from_secs(2);

/// A round counts where it begins this soon after the other thread has ended its own: then both
/// threads have a core, and not the same one.
const GAP_MAX_NS: u64 = 1000;

/// Looks at the turn between two times that a thread gives its core up, for the case that both
/// share one.
const LOOKS: u32 = 1000;

const PAUSES: u32 = 10_000;

/// Number of turns that have ended, with the time of the last, and whether to go on.
#[derive(Debug, Default)]
struct Turns {
    ended: Word,
    ended_at_ns: Word,
    is_over: Word,
}

impl Turns {
    /// Waits until `turn` turns have ended. Returns `false` where the other thread is over.
    fn wait(&self, turn: u64) -> bool {
        let mut looks = 0;
        // Acquire: what the other thread did in its turn is done.
        while self.ended.0.load(Ordering::Acquire) != turn {
            // Acquire: as above, for its last turn.
            if self.is_over.0.load(Ordering::Acquire) != 0 {
                return false;
            }
            looks += 1;
            if looks % LOOKS == 0 {
                std::thread::yield_now();
            }
            spin_loop();
        }
        true
    }
}

/// Words, each with the place of the next, so that no two of them can be under way at once.
fn chain() -> Vec<Word> {
    // By this step each place is reached before the first comes again.
    (0..WORDS).map(|at| Word(AtomicU64::new(((at * 37 + 11) % WORDS) as u64))).collect()
}

/// Changes each word of a chain once by a read-modify-write and returns the mean time in
/// nanoseconds.
fn change(words: &[Word]) -> f64 {
    let begin = Instant::now();
    let mut at = 0;
    for _ in 0..WORDS {
        // Relaxed: the words are only moved. The lowest bits stay, which have the next place.
        at = words[at].0.fetch_add(WORDS as u64, Ordering::Relaxed) as usize % WORDS;
    }
    black_box(at);
    begin.elapsed().as_nanos() as f64 / WORDS as f64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Measures the time of a transfer between two cores and of a pause; takes up to two seconds. All
/// cores are as far from each other as these two.
///
/// Two threads take turns to change the same words. The median counts, of rounds in which both
/// threads had a core.
///
/// # Errors
/// [`CoherenceError::Busy`] if there were too few such rounds.
pub fn measure() -> Result<Machine, CoherenceError> {
    let words = chain();
    let turns = Turns::default();
    let begin = Instant::now();
    let now_ns = || begin.elapsed().as_nanos() as u64;
    let take_turns = |own: u64| {
        let mut times = Vec::new();
        let mut turn = own;
        while turns.wait(turn) {
            // Relaxed: the turn, which was acquired, orders it.
            let gap = now_ns().saturating_sub(turns.ended_at_ns.0.load(Ordering::Relaxed));
            // The first time the words come from the other core, the second time they are here.
            let [from_other, own_words] = [change(&words), change(&words)];
            if turn > 0 && gap < GAP_MAX_NS {
                times.push(from_other - own_words);
            }
            let is_over = times.len() == ROUNDS_MAX || begin.elapsed() > TIME_MAX;
            // Relaxed: the turn, which is released, orders it.
            turns.ended_at_ns.0.store(now_ns(), Ordering::Relaxed);
            // Release: the words are changed before the other thread begins.
            turns.ended.0.store(turn + 1, Ordering::Release);
            if is_over {
                // Release: as above.
                turns.is_over.0.store(1, Ordering::Release);
                break;
            }
            turn += 2;
        }
        times
    };
    let times = std::thread::scope(|scope| {
        let other = scope.spawn(|| take_turns(1));
        let mut times = take_turns(0);
        times.extend(other.join().expect("it only counts"));
        times
    });
    if times.len() < ROUNDS_MIN {
        return Err(CoherenceError::Busy);
    }
    let pauses = (0..101).map(|_| {
        let begin = Instant::now();
        (0..PAUSES).for_each(|_| spin_loop());
        black_box(begin.elapsed().as_nanos() as f64) / f64::from(PAUSES)
    });
    let transfer_ns = median(times).max(0.0);
    Ok(Machine { transfer_ns, far_ns: transfer_ns, group: 1, pause_ns: median(pauses.collect()) })
}
