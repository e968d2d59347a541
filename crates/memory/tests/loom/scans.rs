//! Models of scans: looks at the cells of threads that hold many guards, a part at a time.

use std::sync::Arc;

use crate::hazard::Record;
use crate::records::Records;
use crate::sync::{AtomicUsize, Ordering, Tracked};
use crate::{barrier, model, sync, thread};

const ADDRESS: usize = 2;
const OTHER: usize = 4;

/// Scans until what was taken out before can be told from what is looked at, one record at a time,
/// and frees the entry unless it is.
fn reclaim(records: &Records, own: &Record, entry: &Tracked) {
    let asked = records.ask();
    while !records.advance(own, 1, asked) {}
    if records.are_cleared(&[(ADDRESS, asked)]) == [true] {
        entry.free();
    }
}

/// Of the reclaimer, a reader and a third thread, none of which has looked at anything.
fn three(records: &Records) -> [&'static Record; 3] {
    // SAFETY: the records live as long as `records`, which each thread of a model has.
    [(); 3].map(|()| unsafe { &*records.acquire() })
}

#[test]
fn a_scan_sees_what_readers_found_before_it_was_taken_out() {
    sync::with_own_fences(false);
    model(3, || {
        let records = Arc::new(Records::default());
        let (place, entry) = (Arc::new(AtomicUsize::new(ADDRESS)), Arc::new(Tracked::new(10)));
        let [own, readers, _] = three(&records);
        let reader = {
            let (_records, place, entry) =
                (Arc::clone(&records), Arc::clone(&place), Arc::clone(&entry));
            thread::spawn(move || {
                let cell = readers.cell();
                cell.store(ADDRESS, Ordering::Release);
                barrier::light();
                if place.load(Ordering::Acquire) == ADDRESS {
                    assert_eq!(entry.get(), 10);
                }
                cell.store(0, Ordering::Release);
            })
        };
        place.store(0, Ordering::Release);
        reclaim(&records, own, &entry);
        reader.join().unwrap();
    });
}

#[test]
fn a_scan_sees_a_guard_that_becomes_a_hold_and_a_guard_again() {
    model(3, || {
        let records = Arc::new(Records::default());
        let entry = Arc::new(Tracked::new(10));
        let [own, readers, _] = three(&records);
        let cell = readers.cell();
        cell.store(ADDRESS, Ordering::Release);
        let reader = {
            let (records, entry) = (Arc::clone(&records), Arc::clone(&entry));
            thread::spawn(move || {
                let hold = records.hold(ADDRESS);
                cell.store(0, Ordering::Release);
                assert_eq!(entry.get(), 10);
                let cell = records.adopt(readers, ADDRESS);
                drop(hold);
                assert_eq!(entry.get(), 10);
                cell.store(0, Ordering::Release);
            })
        };
        reclaim(&records, own, &entry);
        reader.join().unwrap();
    });
}

#[test]
fn a_scan_sees_a_guard_beyond_the_first_few_and_frees_once_it_is_gone() {
    model(2, || {
        let records = Arc::new(Records::default());
        let entry = Arc::new(Tracked::new(10));
        let [own, readers, _] = three(&records);
        for _ in 0..5 {
            readers.cell().store(OTHER, Ordering::Release);
        }
        let cell = readers.cell();
        cell.store(ADDRESS, Ordering::Release);
        let reader = {
            let (records, entry) = (Arc::clone(&records), Arc::clone(&entry));
            thread::spawn(move || {
                assert_eq!(entry.get(), 10);
                cell.store(0, Ordering::Release);
                // The chunk is empty and may go; another comes.
                let cell = readers.cell();
                cell.store(OTHER, Ordering::Release);
                drop(records);
            })
        };
        reclaim(&records, own, &entry);
        reader.join().unwrap();
        let asked = records.ask();
        while !records.advance(own, 1, asked) {}
        assert_eq!(records.are_cleared(&[(ADDRESS, asked)]), [true], "nobody looks at it");
        assert_eq!(records.are_cleared(&[(OTHER, asked)]), [false]);
    });
}
