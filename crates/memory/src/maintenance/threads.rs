//! The maintenance threads: one leads, and hands over before it runs the user's code.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{AGAIN_US, EARLIER, LEAD, Locked, Maintenance, NO_THREADS, maintenance, now_us};
use crate::sweep::Sweep;

/// The name of these threads.
const NAME: &str = "floe-keeper";

/// Returns whether this is a maintenance thread.
pub(crate) fn is_own_thread() -> bool {
    std::thread::current().name() == Some(NAME)
}

impl Maintenance {
    pub(super) fn start_thread(&mut self) -> std::io::Result<()> {
        if NO_THREADS.load(Ordering::Relaxed) {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        std::thread::Builder::new().name(NAME.to_owned()).spawn(run)?;
        self.threads += 1;
        Ok(())
    }

    /// Has another thread lead.
    fn hand_over(&mut self) {
        self.is_led = false;
        if self.waiting > 0 {
            LEAD.notify_one();
        } else {
            let _ = self.start_thread(); // else nobody leads until this thread is back
        }
    }
}

/// Runs a maintenance thread until the list is empty or another thread is enough.
fn run() {
    crate::quiet::may_be_quiet();
    let mut maintenance = maintenance();
    let mut leads = false;
    while !maintenance.caches.is_empty() {
        let now = now_us();
        if !leads && maintenance.is_led {
            if maintenance.waiting > 0 {
                break; // one other is enough
            }
            maintenance.waiting += 1;
            maintenance = maintenance.wait(&LEAD);
            maintenance.waiting -= 1;
            continue;
        }
        (leads, maintenance.is_led) = (true, true);
        let due = maintenance.next_due();
        if due.is_none_or(|due| due > now) {
            maintenance = match due {
                Some(due) => maintenance.wait_until(&EARLIER, due),
                None => maintenance.wait(&EARLIER),
            };
            continue;
        }
        let ticks = maintenance.take_ticks(now);
        if !ticks.is_empty() {
            leads = false;
            maintenance = tick(maintenance, ticks, now);
            continue;
        }
        let mut next = maintenance.take_sweep(now);
        if next.is_some() {
            leads = false;
            maintenance.hand_over();
        }
        while let Some((number, cache)) = next {
            maintenance = sweep(maintenance, number, cache);
            next = maintenance.take_sweep(now_us());
        }
    }
    if leads {
        maintenance.is_led = false;
        LEAD.notify_all();
    }
    maintenance.threads -= 1;
}

/// Does ticks, and hands over.
fn tick(maintenance: Locked, ticks: Vec<(u64, Arc<dyn Sweep>)>, now: u64) -> Locked {
    drop(maintenance);
    let used: Vec<_> =
        ticks.iter().map(|(_, cache)| quietly(|| tick_one(&**cache)).unwrap_or(false)).collect();
    rest();
    let (mut maintenance, now) = (super::maintenance(), now_us().max(now));
    for ((number, _), used) in ticks.iter().zip(used) {
        maintenance.ticked(*number, used, now);
    }
    maintenance.hand_over();
    drop(maintenance);
    for (_, cache) in ticks {
        quietly(|| drop(cache)); // the last handle, if its users are done with it
    }
    rest();
    super::maintenance()
}

fn sweep(maintenance: Locked, number: u64, cache: Arc<dyn Sweep>) -> Locked {
    drop(maintenance);
    let next = quietly(|| cache.sweep()).unwrap_or_else(|| Some(now_us() + AGAIN_US));
    quietly(|| drop(cache)); // as in `tick`
    rest();
    let mut maintenance = super::maintenance();
    maintenance.swept(number, next);
    maintenance
}

fn tick_one(cache: &dyn Sweep) -> bool {
    let _quiet = crate::quiet::quiet();
    cache.tick()
}

fn rest() {
    let _quiet = crate::quiet::quiet();
    crate::local::rest();
}

/// Runs what may run the user's code, which panics in vain.
fn quietly<R>(run: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(run)).map_err(crate::thrown::discard).ok()
}
