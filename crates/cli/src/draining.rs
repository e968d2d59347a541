//! Progress of commands that make a server write dirty data down, or give back space.

use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::scope;
use std::time::Duration;

use floe_server::admin::client::{AdminError, Endpoint, tiers};
use floe_server::status::TierStatus;
use indicatif::ProgressBar;

use crate::output;

/// Interval at which the server is asked how much is left. Quicker commands show nothing.
const LOOK: Duration = Duration::from_secs(1);

/// Runs `command`. Meanwhile shows on a terminal how much of the dirty data of the tiers
/// that `drained` names, by their numbers, is written, and how long it will take.
pub(crate) fn show<T>(
    server: &Endpoint,
    drained: impl Fn(usize) -> bool + Send,
    command: impl FnOnce() -> Result<T, AdminError>,
) -> Result<T, AdminError> {
    let left = move |tiers: &[TierStatus]| {
        let drained = tiers.iter().enumerate().filter(|(number, _)| drained(*number));
        drained.map(|(_, tier)| tier.dirty_bytes).sum()
    };
    follow(server, "writing dirty data", left, command)
}

/// Runs `command`. Meanwhile shows on a terminal how many bytes are left, which `left` tells by
/// the tiers' status, and how long these will take.
pub(crate) fn follow<T>(
    server: &Endpoint,
    what: &str,
    left: impl Fn(&[TierStatus]) -> u64 + Send,
    command: impl FnOnce() -> Result<T, AdminError>,
) -> Result<T, AdminError> {
    if !stderr().is_terminal() {
        return command();
    }
    let left = move || tiers(server).ok().map(|tiers| left(&tiers));
    scope(|scope| {
        let (end, ended) = channel();
        scope.spawn(move || show_left(&ended, LOOK, left, |most| output::progress(most, what)));
        let done = command();
        drop(end);
        done
    })
}

/// Shows on a bar how much is left, until `ended` loses its sender.
fn show_left(
    ended: &Receiver<()>,
    interval: Duration,
    left: impl Fn() -> Option<u64>,
    new_bar: impl Fn(u64) -> ProgressBar,
) {
    let mut bar: Option<ProgressBar> = None;
    while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        let Some(left) = left() else { continue };
        let bar = bar.get_or_insert_with(|| new_bar(left));
        // Clients may write faster than the server writes down.
        let most = bar.length().unwrap_or_default().max(left);
        bar.set_length(most);
        bar.set_position(most - left);
    }
    bar.into_iter().for_each(|bar| bar.finish_and_clear());
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Returns what the bar showed, each time the server was asked, of how much.
    fn shown(answers: &[Option<u64>]) -> Vec<(u64, u64)> {
        let (end, ended) = channel();
        let (end, mut shown) = (RefCell::new(Some(end)), Vec::new());
        let bar = RefCell::new(None::<ProgressBar>);
        let asked = RefCell::new(answers.iter());
        let seen = RefCell::new(&mut shown);
        let look = || {
            if let Some(bar) = &*bar.borrow() {
                seen.borrow_mut().push((bar.position(), bar.length().unwrap()));
            }
            let next = asked.borrow_mut().next();
            if next.is_none() {
                end.take();
            }
            *next?
        };
        show_left(&ended, Duration::ZERO, look, |most| {
            let made = ProgressBar::hidden();
            made.set_length(most);
            bar.borrow_mut().insert(made).clone()
        });
        shown
    }

    #[test]
    fn what_is_written_is_what_is_no_longer_left() {
        assert_eq!(shown(&[Some(100), Some(60), Some(0)]), [(0, 100), (40, 100), (100, 100)]);
    }

    #[test]
    fn the_goal_moves_where_clients_write_faster() {
        assert_eq!(shown(&[Some(100), Some(150), Some(30)]), [(0, 100), (0, 150), (120, 150)]);
    }

    #[test]
    fn a_server_that_does_not_answer_changes_nothing() {
        assert_eq!(shown(&[None, Some(100), None, Some(50)]), [(0, 100), (0, 100), (50, 100)]);
        assert_eq!(shown(&[]), []);
    }
}
