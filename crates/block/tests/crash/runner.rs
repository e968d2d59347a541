//! Worlds by the thousand, on two threads; the first that fails says by which seed it is seen
//! again.

use std::fmt;
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use floe_device::Pool;

use crate::world::{Options, Survived, World};

/// Lives of a world: enough for what one crash does to what an earlier one left, few enough for
/// many kinds of worlds.
pub const LIVES: u32 = 25;

/// Memory for buffers of a thread; what does not fit comes from the heap.
const ARENA_BYTES: usize = 4 << 20;

const THREADS: usize = 2;

/// A world that failed.
#[derive(Debug)]
pub struct Fallen {
    pub seed: u64,
    pub life: u32,
    pub why: String,
}

/// Runs one world to its end.
pub fn run_one(seed: u64, pool: &Pool, options: Options) -> Result<(Survived, u64), Fallen> {
    let mut life = 0;
    let run = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(seed, pool, options);
        while life < LIVES {
            life += 1;
            world.live().map_err(|failure| failure.to_string())?;
        }
        world.count_checkpoints().map_err(|failure| failure.to_string())?;
        Ok(world.survived())
    }));
    let why = match run {
        Ok(Ok(survived)) => return Ok(survived),
        Ok(Err(why)) => why,
        Err(panic) => match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
            (Some(message), _) => format!("panic: {message}"),
            (_, Some(message)) => format!("panic: {message}"),
            _ => "panic".to_owned(),
        },
    };
    Err(Fallen { seed, life, why })
}

/// Runs worlds from a seed on, until there were so many crashes.
pub fn run(first_seed: u64, crashes: u64, options: Options) -> Result<Survived, Fallen> {
    let (next, crashed) = (AtomicU64::new(first_seed), AtomicU64::new(0));
    let work = || {
        let (pool, mut sum) = (Pool::new(ARENA_BYTES), Survived::default());
        while crashed.load(Ordering::Relaxed) < crashes {
            let (survived, _) = run_one(next.fetch_add(1, Ordering::Relaxed), &pool, options)
                .inspect_err(|_| crashed.store(u64::MAX / 2, Ordering::Relaxed))?;
            crashed.fetch_add(survived.crashes(), Ordering::Relaxed);
            sum += survived;
        }
        Ok(sum)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        let mut sum = Survived::default();
        for thread in threads {
            sum += thread.join().expect("panics have been caught")?;
        }
        Ok(sum)
    })
}

impl Survived {
    /// How often power failed or the process was killed.
    pub fn crashes(&self) -> u64 {
        self.power_cuts + self.kills
    }
}

impl AddAssign for Survived {
    fn add_assign(&mut self, other: Survived) {
        self.power_cuts += other.power_cuts;
        self.kills += other.kills;
        self.ended += other.ended;
        self.cuts_while_starting += other.cuts_while_starting;
        self.requests += other.requests;
        self.failed_requests += other.failed_requests;
        self.failed_operations += other.failed_operations;
        self.rotten_bits += other.rotten_bits;
        self.lost_pages += other.lost_pages;
        self.mended_bytes += other.mended_bytes;
        self.last_pages += other.last_pages;
        self.checked_units += other.checked_units;
        self.checkpoints += other.checkpoints;
        self.bypassed += other.bypassed;
        self.retired += other.retired;
        self.smaller += other.smaller;
    }
}

impl fmt::Display for Survived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} crashes ({} power cuts, {} of them while starting; {} kills) and {} orderly ends; \
             {} requests, {} of which failed after {} failures of devices; {} bits rotted, \
             {} of them in the newest page of a log, {} bytes of halves were mended; {} \
             pages lost in copies that were salvaged; {} units of 512 bytes checked; \
             {} checkpoints; {} journals gone past, {} caches retired; {} caches became smaller",
            self.crashes(),
            self.power_cuts,
            self.cuts_while_starting,
            self.kills,
            self.ended,
            self.requests,
            self.failed_requests,
            self.failed_operations,
            self.rotten_bits,
            self.last_pages,
            self.mended_bytes,
            self.lost_pages,
            self.checked_units,
            self.checkpoints,
            self.bypassed,
            self.retired,
            self.smaller
        )
    }
}

impl fmt::Display for Fallen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fallen { seed, life, why } = self;
        write!(
            f,
            "in life {life} of world {seed}, {why}\nto see it again: FLOE_CRASH_SEED={seed} "
        )?;
        write!(f, "cargo test -p floe-block --test crash one_world -- --ignored --nocapture")
    }
}
