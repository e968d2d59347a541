//! Loads that need each other: none waits for ever, and the keys are there afterwards.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::common::block_on;
use floe_memory::host::{LoadRun, Wait};
use floe_memory::{Cache, InsertOptions};

type Numbers = Cache<u64, u64>;

/// Longer than any of this takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// Runs a test on threads of its own, which stay behind if it hangs.
fn ends<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let result = run();
        _ = done.send(()); // nobody listens after the time
        result
    });
    // A panic drops the sender, and is seen below.
    let hangs = is_done.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout);
    assert!(!hangs, "{what} hangs");
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A way to ask for a key with a load.
type Ask = fn(&Numbers, u64, &dyn Fn() -> u64) -> u64;

fn plain(value: u64) -> Result<(u64, InsertOptions), ()> {
    Ok((value, InsertOptions::new()))
}

const WAYS: [(&str, Ask); 9] = [
    ("get_or_insert_with", |cache, key, load| {
        *cache.get_or_insert_with(&key, || Ok::<_, ()>(load())).unwrap()
    }),
    ("try_get_with", |cache, key, load| *cache.try_get_with(&key, || Ok::<_, ()>(load())).unwrap()),
    ("get_with", |cache, key, load| *cache.get_with(&key, load)),
    ("get", |cache, key, load| *cache.loads().get(&key, || plain(load())).unwrap()),
    ("get_within", |cache, key, load| {
        *cache.loads().get_within(&key, PATIENCE, || plain(load())).unwrap()
    }),
    ("get_or_load_many", |cache, key, load| {
        let keys = [key, key + 1000];
        let load = |keys: &[&u64]| Ok::<_, ()>(keys.iter().map(|_| Some(load())).collect());
        **cache.get_or_load_many(&keys, load).unwrap()[0].as_ref().unwrap()
    }),
    ("get_or_insert_async", |cache, key, load| {
        let load = async { Ok::<_, ()>(load()) };
        block_on(async { *cache.get_or_insert_async(&key, load).await.unwrap() })
    }),
    ("try_get_async", |cache, key, load| {
        let load = async { Ok::<_, ()>(load()) };
        block_on(async { *cache.try_get_async(&key, load).await.unwrap() })
    }),
    ("get_async", |cache, key, load| {
        let load = async { plain(load()) };
        block_on(async { *cache.loads().get_async(&key, load).await.unwrap() })
    }),
];

/// Threads in a circle: each loads its key and asks for the next one's meanwhile, in turn in one of
/// some caches.
fn circle(threads: usize, caches: usize, outer: Ask, inner: Ask) {
    let caches: Vec<_> = (0..caches).map(|_| Numbers::new(10_000)).collect();
    let all_load = Barrier::new(threads);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (caches, all_load) = (&caches, &all_load);
            let of = move |thread: usize| &caches[thread % caches.len()];
            scope.spawn(move || {
                let first = Cell::new(true);
                let next = (thread + 1) % threads;
                let value = outer(of(thread), thread as u64, &|| {
                    if first.replace(false) {
                        all_load.wait();
                        inner(of(next), next as u64, &|| 0);
                    }
                    1
                });
                assert!(value <= 1);
            });
        }
    });
    for thread in 0..threads {
        let cache = &caches[thread % caches.len()];
        let value = cache.get_with(&(thread as u64), || unreachable!("it was loaded"));
        assert!(*value <= 1, "it is what one of the loads has brought");
    }
}

#[test]
fn threads_that_load_what_each_other_needs_all_end() {
    for (outer, first) in WAYS {
        for (inner, second) in WAYS {
            let what = format!("{outer} that asks by {inner}");
            ends(&what, move || circle(2, 1, first, second));
        }
    }
    for threads in [3, 7] {
        for caches in 1..=3 {
            for (name, way) in [WAYS[0], WAYS[6]] {
                let what = format!("{name} by {threads} threads in {caches} caches");
                ends(&what, move || circle(threads, caches, way, way));
            }
        }
    }
}

#[test]
fn only_the_load_that_closes_a_circle_does_not_wait() {
    for threads in [2, 3, 5] {
        let cache = ends("a circle", move || {
            let (cache, all_load) = (Numbers::new(100), Barrier::new(threads));
            std::thread::scope(|scope| {
                for thread in 0..threads as u64 {
                    let (cache, all_load) = (&cache, &all_load);
                    scope.spawn(move || {
                        cache.get_with(&thread, || {
                            all_load.wait();
                            *cache.get_with(&((thread + 1) % threads as u64), || 0)
                        });
                    });
                }
            });
            cache
        });
        assert_eq!(cache.stats().loads, threads as u64 + 1);
    }
}

#[test]
fn functions_that_call_each_other_without_an_end_panic_and_do_not_hang() {
    fn value(cache: &Numbers, key: u64) -> u64 {
        *cache.get_with(&key, || value(cache, (key + 1) % 3))
    }
    ends("a recursion without an end", || {
        let cache = Numbers::new(100);
        std::thread::scope(|scope| {
            for key in 0..3 {
                let cache = &cache;
                scope.spawn(move || {
                    let panic = catch_unwind(AssertUnwindSafe(|| value(cache, key)));
                    let panic = panic.expect_err("it has no end");
                    let text = panic.downcast_ref::<&str>().copied().unwrap_or_default();
                    assert_eq!(text, "a load asks for the key that it loads");
                });
            }
        });
        assert_eq!(*cache.get_with(&0, || 10), 10);
    });
}

#[test]
fn a_batch_and_a_load_that_need_each_other_both_end() {
    ends("a batch", || {
        let (cache, both_load) = (Numbers::new(100), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let load = |keys: &[&u64]| {
                    both_load.wait();
                    let third = *cache.get_with(&3, || 30);
                    Ok::<_, ()>(keys.iter().map(|key| Some(**key + third)).collect())
                };
                let found = cache.get_or_load_many(&[1, 2, 1], load).unwrap();
                assert!(found.iter().all(Option::is_some));
            });
            scope.spawn(|| {
                cache.get_with(&3, || {
                    both_load.wait();
                    *cache.get_with(&2, || 20)
                });
            });
        });
        assert!([1, 2, 3].iter().all(|key| cache.contains_key(key)));
    });
}

/// Is pending once, so that others go on.
async fn yields() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Polls all of some futures until they are ready.
async fn join(mut futures: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    poll_fn(|context| {
        futures.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if futures.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[test]
fn futures_of_one_task_that_need_each_other_all_end() {
    for number in [2, 3, 10] {
        let cache = ends("a task with futures", move || {
            let cache = Numbers::new(100);
            let ask = |key: u64| {
                let cache = &cache;
                let load = async move {
                    yields().await;
                    let next = (key + 1) % number;
                    Ok::<_, ()>(*cache.get_or_insert_async(&next, async { Ok::<_, ()>(0) }).await?)
                };
                Box::pin(async move { drop(cache.get_or_insert_async(&key, load).await) })
            };
            block_on(join((0..number).map(|key| ask(key) as _).collect()));
            cache
        });
        assert_eq!(cache.stats().loads, number + 1, "the last one loads by itself");
        assert!((0..number).all(|key| cache.contains_key(&key)));
    }
}

#[test]
fn a_load_with_two_branches_that_need_the_same_key_is_no_circle() {
    let cache = Numbers::new(100);
    let branches = async {
        let slow = async {
            yields().await;
            Ok::<_, ()>(2)
        };
        let other = async {
            let two = cache.get_or_insert_async(&2, async { Err("it is loaded twice") }).await;
            Ok::<_, ()>(*two.unwrap() + 1)
        };
        join(vec![
            Box::pin(async { drop(cache.get_or_insert_async(&2, slow).await) }),
            Box::pin(async { drop(cache.get_or_insert_async(&3, other).await) }),
        ])
        .await;
        Ok::<_, ()>(1)
    };
    block_on(async { drop(cache.get_or_insert_async(&1, branches).await) });
    assert_eq!((cache.stats().loads, cache.get_cloned(&3)), (3, Some(3)));
}

#[test]
fn a_thread_does_not_block_on_a_future_that_it_polls_itself() {
    ends("a thread that polls", || {
        let cache = Numbers::new(100);
        let mut suspended = pin!(cache.get_or_insert_async(&1, async {
            yields().await;
            Ok::<_, ()>(1)
        }));
        let context = &mut Context::from_waker(Waker::noop());
        assert!(suspended.as_mut().poll(context).is_pending());
        assert_eq!(*cache.get_with(&1, || 10), 10);
        assert!(suspended.as_mut().poll(context).is_ready());
        assert_eq!(cache.get_cloned(&1), Some(10), "the first to come in stays");
    });
}

#[test]
fn a_wait_that_was_given_up_is_no_part_of_a_circle() {
    let cache = Numbers::new(100);
    let context = &mut Context::from_waker(Waker::noop());
    let never = || std::future::pending::<Result<u64, ()>>();
    let mut second = Box::pin(cache.get_or_insert_async(&2, async {
        yields().await;
        // By now the first load waits for this one no more, so this one can wait for it.
        cache.get_or_insert_async(&1, async { Err(()) }).await.map(|one| *one)
    }));
    assert!(second.as_mut().poll(context).is_pending());
    let mut first = Box::pin(cache.get_or_insert_async(&1, async {
        let mut waits = Box::pin(cache.get_or_insert_async(&2, never()));
        poll_fn(|context| {
            assert!(waits.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        drop(waits);
        yields().await;
        Ok::<_, ()>(1)
    }));
    assert!(first.as_mut().poll(context).is_pending());
    assert!(second.as_mut().poll(context).is_pending());
    assert_eq!(cache.stats().loads, 2, "it waits");
    assert!(first.as_mut().poll(context).is_ready());
    assert!(second.as_mut().poll(context).is_ready());
    assert_eq!(cache.get_cloned(&2), Some(1));
}

#[test]
fn a_chain_of_loads_is_loaded_once_each() {
    let (cache, loads) = (Numbers::new(100), Arc::new(AtomicU64::new(0)));
    fn value(cache: &Numbers, loads: &AtomicU64, key: u64) -> u64 {
        *cache.get_with(&key, || {
            loads.fetch_add(1, SeqCst);
            if key == 0 { 0 } else { value(cache, loads, key - 1) + 1 }
        })
    }
    std::thread::scope(|scope| {
        for key in (0..20).rev() {
            let (cache, loads) = (&cache, &loads);
            scope.spawn(move || assert_eq!(value(cache, loads, key), key));
        }
    });
    assert_eq!(loads.load(SeqCst), 20);
}

#[test]
fn hosts_learn_of_waits_without_an_end() {
    let [one, two, three] = std::array::from_fn(|_| LoadRun::new());
    let first = Wait::of(&two, vec![one.clone()], false).expect("no circle yet");
    let second = Wait::of(&three, vec![two.clone()], true).expect("no circle yet");
    assert!(Wait::of(&one, vec![three.clone()], false).is_none());
    assert!(Wait::of(&three, vec![three.clone()], false).is_none(), "for itself");
    let inside = three.enter();
    assert!(three.is_here() && Wait::block(&one).is_none());
    drop(second);
    assert!(Wait::block(&one).is_some() && Wait::suspend(&three).is_none());
    drop((inside, first));
    assert!(!three.is_here() && Wait::block(&three).is_some());
}
