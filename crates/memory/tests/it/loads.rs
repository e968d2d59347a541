//! One load per key, however many ask and whatever happens meanwhile.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};

use crate::common::block_on;
use floe_memory::Cache;

type Texts = Cache<u64, String>;

/// Something that makes what is being loaded out of date.
type Change = fn(&Texts);

const THREADS: u64 = 8;

/// Waits for so many to have asked without success, that is, to be waiting or about to.
fn until_missed(cache: &Texts, times: u64) {
    while cache.stats().misses < times {
        std::thread::yield_now();
    }
}

#[test]
fn a_key_that_many_ask_for_is_loaded_once() {
    for key in 0..if cfg!(miri) { 3 } else { 200 } {
        let (cache, loads, start) =
            (Texts::new(10), AtomicU64::new(0), Barrier::new(THREADS as usize));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (cache, loads, start) = (&cache, &loads, &start);
                scope.spawn(move || {
                    start.wait();
                    let load = || {
                        loads.fetch_add(1, SeqCst);
                        Ok::<_, ()>(format!("{key}"))
                    };
                    let value = if thread % 2 == 0 {
                        cache.get_or_insert_with(&key, load).expect("it loads").to_string()
                    } else {
                        let future = cache.get_or_insert_async(&key, async { load() });
                        block_on(async { future.await.expect("it loads").to_string() })
                    };
                    assert_eq!(value, format!("{key}"));
                });
            }
        });
        assert_eq!((loads.load(SeqCst), cache.stats().loads), (1, 1));
    }
}

#[test]
fn a_load_that_fails_or_panics_wakes_the_others_and_the_next_one_tries() {
    for panics in [false, true] {
        let (cache, tries) = (Texts::new(10), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let ask = || {
                let load = || {
                    let first = tries.fetch_add(1, SeqCst) == 0;
                    until_missed(&cache, THREADS);
                    assert!(!(first && panics), "the first load panics");
                    if first { Err("the first fails") } else { Ok("loaded".to_owned()) }
                };
                catch_unwind(AssertUnwindSafe(|| {
                    cache.get_or_insert_with(&1, load).map(|value| value.len())
                }))
            };
            let asked: Vec<_> = (0..THREADS).map(|_| scope.spawn(ask)).collect();
            let got: Vec<_> =
                asked.into_iter().map(|thread| thread.join().expect("caught")).collect();
            let well = got.iter().filter(|got| matches!(got, Ok(Ok(6)))).count();
            assert_eq!(well as u64, THREADS - 1);
        });
        let stats = cache.stats();
        assert_eq!((tries.load(SeqCst), stats.loads, stats.failed_loads), (2, 2, 1));
    }
}

#[test]
fn what_is_loaded_while_the_key_changes_is_handed_out_and_does_not_come_in() {
    let changes: [(&str, Change); 6] = [
        ("removed", |cache| drop(cache.remove(&1))),
        ("removed if there", |cache| drop(cache.remove_if(&1, |_| true))),
        ("not removed", |cache| drop(cache.remove_if(&1, |_| false))),
        ("retained", |cache| cache.retain(|_, _| true)),
        ("inserted", |cache| cache.insert(1, "new".to_owned())),
        ("cleared", |cache| cache.clear()),
    ];
    for (name, change) in changes {
        let cache = Texts::new(10);
        std::thread::scope(|scope| {
            let (begun, begins) = mpsc::channel();
            let (go, goes) = mpsc::channel();
            let cache = &cache;
            let loads = scope.spawn(move || {
                let load = || {
                    begun.send(()).expect("the test waits");
                    goes.recv().expect("the test goes on");
                    Ok::<_, ()>("old".to_owned())
                };
                cache.get_or_insert_with(&1, load).expect("it loads").to_string()
            });
            begins.recv().expect("the load begins");
            let waits = scope.spawn(|| {
                cache
                    .get_or_insert_with(&1, || Err("a load is under way"))
                    .map(|value| value.to_string())
            });
            until_missed(cache, 2);
            // The waiter may join before the change or, being late, load for itself.
            std::thread::yield_now();
            change(cache);
            go.send(()).expect("the load waits");
            assert_eq!(loads.join().expect("no panic"), "old", "{name}");
            let waited = waits.join().expect("no panic");
            assert!(
                waited.as_deref().is_err() || ["old", "new"].contains(&&*waited.expect("checked")),
                "{name}"
            );
        });
        let expected = (name == "inserted").then_some("new".to_owned());
        assert_eq!(cache.get_cloned(&1), expected, "{name}");
    }
}

#[test]
fn what_comes_in_while_its_key_is_loaded_stays_even_if_the_load_does_not_notice() {
    let cache = Texts::new(10);
    let value = cache.get_or_insert_with(&1, || {
        cache.insert(1, "newer".to_owned());
        Ok::<_, ()>("loaded".to_owned())
    });
    assert_eq!(*value.expect("it loads"), "loaded");
    assert_eq!(cache.get_cloned(&1).as_deref(), Some("newer"));
}

#[test]
fn a_load_that_asks_for_its_own_key_panics_and_says_why() {
    let cache = Texts::new(10);
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let inner = || {
            cache
                .get_or_insert_with(&1, || Ok::<_, ()>("inner".to_owned()))
                .map(|value| value.clone())
        };
        cache.get_or_insert_with(&1, inner).map(|value| value.clone())
    }));
    let panic = panic.expect_err("it would wait for itself");
    let message = panic.downcast_ref::<&str>().copied().unwrap_or_default();
    assert!(message.contains("a load asks for the key that it loads"), "{message}");
    assert_eq!(
        *cache.get_or_insert_with(&1, || Ok::<_, ()>("later".to_owned())).expect("it loads"),
        "later"
    );
    let nested = cache.get_or_insert_with(&2, || {
        cache.get_or_insert_with(&3, || Ok::<_, ()>("three".to_owned())).map(|value| value.clone())
    });
    assert_eq!(*nested.expect("another key may be asked for"), "three");
}

#[test]
fn those_who_wait_get_what_the_cache_rejects() {
    let cache: Texts = Cache::builder()
        .weight_capacity(10)
        .weigher(|_, value: &String| value.len() as u32)
        .build();
    let large = "larger than the cache".to_owned();
    let loads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let load = || {
                    loads.fetch_add(1, SeqCst);
                    until_missed(&cache, THREADS);
                    Ok::<_, ()>(large.clone())
                };
                assert_eq!(*cache.get_or_insert_with(&1, load).expect("it loads"), large);
            });
        }
    });
    assert!(cache.is_empty() && cache.stats().rejections == loads.load(SeqCst));
}

/// Parks the thread until the future is woken.
/// Threads that poll whatever is woken, each future by whichever thread comes first.
struct Pool {
    ready: Mutex<mpsc::Receiver<Arc<Task>>>,
}

struct Task {
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    queue: mpsc::Sender<Arc<Task>>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let queue = self.queue.clone();
        _ = queue.send(self); // nobody may be left to poll it
    }
}

impl Pool {
    /// Runs futures on some threads to their end.
    fn run(threads: usize, futures: Vec<Pin<Box<dyn Future<Output = ()> + Send>>>) {
        let (queue, ready) = mpsc::channel();
        for future in futures {
            let task = Task { future: Mutex::new(Some(future)), queue: queue.clone() };
            queue.send(Arc::new(task)).expect("it can be queued");
        }
        drop(queue);
        let pool = Self { ready: Mutex::new(ready) };
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let next = pool.ready.lock().expect("no panic").recv();
                        let Ok(task) = next else { return }; // all are done
                        let waker = Waker::from(Arc::clone(&task));
                        let mut slot = task.future.lock().expect("no panic");
                        let Some(future) = slot.as_mut() else { continue };
                        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                            *slot = None;
                        }
                    }
                });
            }
        });
    }
}

/// Is woken at once, so that another thread may go on.
async fn yields() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[test]
fn futures_may_be_polled_by_any_thread() {
    let (cache, loads) = (Texts::new(1000), Arc::new(AtomicU64::new(0)));
    let keys = if cfg!(miri) { 2 } else { 100 };
    let mut futures: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
    for number in 0..keys * 10 {
        let (cache, loads, key) = (cache.clone(), Arc::clone(&loads), number % keys);
        futures.push(Box::pin(async move {
            let load = async {
                let load = loads.fetch_add(1, SeqCst);
                for _ in 0..load % 5 {
                    yields().await;
                }
                if load % 7 == 3 { Err("this one fails") } else { Ok(format!("{key}")) }
            };
            match cache.get_or_insert_async(&key, load).await {
                Ok(value) => assert_eq!(*value, format!("{key}")),
                Err(error) => assert_eq!(error, "this one fails"),
            }
        }));
    }
    Pool::run(3, futures);
    let stats = cache.stats();
    assert_eq!((stats.loads, cache.len() as u64), (loads.load(SeqCst), keys));
    // After two that failed, the others load beside each other.
    assert!(stats.loads - stats.failed_loads >= keys);
}

#[test]
fn when_the_future_that_loads_is_dropped_the_next_one_loads() {
    let cache = Texts::new(10);
    let mut context = Context::from_waker(Waker::noop());
    let mut first =
        Box::pin(cache.get_or_insert_async(&1, std::future::pending::<Result<String, ()>>()));
    assert!(first.as_mut().poll(&mut context).is_pending());
    std::thread::scope(|scope| {
        let cache = &cache;
        let ask = |value: &'static str| {
            let load = async move { Ok::<_, ()>(value.to_owned()) };
            block_on(async {
                cache.get_or_insert_async(&1, load).await.expect("it loads").to_string()
            })
        };
        let second = scope.spawn(move || ask("second"));
        let third = scope.spawn(|| {
            cache.get_or_insert_with(&1, || Ok::<_, ()>("third".to_owned())).map(|v| v.clone())
        });
        until_missed(cache, 3);
        drop(first);
        let (second, third) = (second.join().expect("no panic"), third.join().expect("no panic"));
        assert_eq!(Ok(second), third);
    });
    assert_eq!((cache.stats().loads, cache.stats().failed_loads), (2, 1));
}

#[test]
fn a_future_that_waits_may_be_dropped() {
    let cache = Texts::new(10);
    let mut context = Context::from_waker(Waker::noop());
    let mut loads = Box::pin(cache.get_or_insert_async(&1, async {
        yields().await;
        Ok::<_, ()>("one".to_owned())
    }));
    assert!(loads.as_mut().poll(&mut context).is_pending());
    let mut waits =
        Box::pin(cache.get_or_insert_async(&1, async { Err::<String, _>("not called") }));
    assert!(waits.as_mut().poll(&mut context).is_pending());
    drop(waits);
    assert!(loads.as_mut().poll(&mut context).is_ready());
    assert_eq!(cache.get_cloned(&1).as_deref(), Some("one"));
}

/// A load whose end the test decides.
#[derive(Default)]
struct Source {
    loads: AtomicU64,
    open: AtomicBool,
}

impl Source {
    /// Fails once the source is open.
    async fn fail(&self) -> Result<String, String> {
        let number = self.loads.fetch_add(1, SeqCst) + 1;
        std::future::poll_fn(
            |_| if self.open.load(SeqCst) { Poll::Ready(()) } else { Poll::Pending },
        )
        .await;
        Err(format!("load {number} fails"))
    }
}

/// Polls all that are not yet ready, once each.
fn poll_all<F: Future + Unpin>(futures: &mut [(F, Option<F::Output>)]) {
    for (future, output) in futures.iter_mut().filter(|(_, output)| output.is_none()) {
        if let Poll::Ready(ready) = Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
            *output = Some(ready);
        }
    }
}

const CLIENTS: usize = 64;

#[test]
fn those_who_wait_for_a_load_that_fails_share_its_error() {
    let (cache, source) = (Texts::new(10), Source::default());
    let ask = || async { cache.try_get_async(&1, source.fail()).await.map(|value| value.len()) };
    let mut asked: Vec<_> = (0..CLIENTS).map(|_| (Box::pin(ask()), None)).collect();
    poll_all(&mut asked);
    source.open.store(true, SeqCst);
    poll_all(&mut asked);
    let errors: Vec<_> = asked
        .iter()
        .map(|(_, got)| got.as_ref().expect("the load is over").as_ref().unwrap_err())
        .collect();
    assert!(errors.iter().all(|error| Arc::ptr_eq(error, errors[0])), "{errors:?}");
    assert_eq!(**errors[0], "load 1 fails");
    assert_eq!((source.loads.load(SeqCst), cache.stats().failed_loads), (1, 1));
    // Errors are not kept.
    let value = cache.try_get_with(&1, || Ok::<_, String>("there".to_owned()));
    assert_eq!(*value.expect("it loads"), "there");
}

#[test]
fn those_who_wait_as_threads_share_the_error_too_and_others_try_for_themselves() {
    let cache = Texts::new(10);
    std::thread::scope(|scope| {
        let (begun, begins) = mpsc::channel();
        let (go, goes) = mpsc::channel();
        let cache = &cache;
        let loads = scope.spawn(move || {
            let load = || {
                begun.send(()).expect("the test waits");
                goes.recv().expect("the test goes on");
                Err::<String, _>("no answer")
            };
            *cache.try_get_with(&1, load).unwrap_err()
        });
        begins.recv().expect("the load begins");
        // Loads of their own fail otherwise, so what they get says whether they waited. Late ones
        // may load for themselves.
        let waits = scope.spawn(|| *cache.try_get_with(&1, || Err("late")).unwrap_err());
        let other = scope.spawn(|| *cache.try_get_with(&1, || Err(7u8)).unwrap_err());
        until_missed(cache, 3);
        go.send(()).expect("the load waits");
        assert_eq!(loads.join().expect("no panic"), "no answer");
        assert!(["no answer", "late"].contains(&waits.join().expect("no panic")));
        assert_eq!(other.join().expect("no panic"), 7, "an error of another type is not its own");
    });
}

#[test]
fn a_source_that_keeps_failing_does_not_make_its_callers_queue() {
    let (cache, source) = (Texts::new(10), Source::default());
    let ask =
        || async { cache.get_or_insert_async(&1, source.fail()).await.map(|value| value.len()) };
    let mut asked: Vec<_> = (0..CLIENTS).map(|_| (Box::pin(ask()), None)).collect();
    poll_all(&mut asked);
    assert_eq!(source.loads.load(SeqCst), 1, "the others wait");
    source.open.store(true, SeqCst);
    // The first load, one more, and then all beside each other. Polled in turn, each round ends one
    // load at least.
    for _ in 0..3 {
        source.open.store(false, SeqCst);
        poll_all(&mut asked);
        source.open.store(true, SeqCst);
        poll_all(&mut asked);
    }
    let errors: std::collections::HashSet<_> = asked
        .into_iter()
        .map(|(_, got)| got.expect("nobody waits any more").unwrap_err())
        .collect();
    assert_eq!(errors.len(), CLIENTS, "each has the error of its own load");
}

#[test]
fn what_is_loaded_beside_others_comes_in_once_and_not_after_a_change() {
    let (cache, source) = (Texts::new(10), Source::default());
    let fails = || Box::pin(cache.get_or_insert_async(&1, source.fail()));
    let noop = &mut Context::from_waker(Waker::noop());
    // Two that failed make all others load beside each other.
    let mut failing = [fails(), fails()];
    let gate = AtomicBool::new(false);
    let loads = |text: &'static str| {
        let gate = &gate;
        Box::pin(cache.get_or_insert_async(&1, async move {
            std::future::poll_fn(
                |_| if gate.load(SeqCst) { Poll::Ready(()) } else { Poll::Pending },
            )
            .await;
            Ok::<_, String>(text.to_owned())
        }))
    };
    let mut loading = [loads("one"), loads("two"), loads("three")];
    failing.iter_mut().for_each(|future| assert!(future.as_mut().poll(noop).is_pending()));
    loading.iter_mut().for_each(|future| assert!(future.as_mut().poll(noop).is_pending()));
    for at in 0..failing.len() {
        source.open.store(true, SeqCst);
        assert!(failing[at].as_mut().poll(noop).is_ready());
        source.open.store(false, SeqCst);
        failing[at + 1..]
            .iter_mut()
            .for_each(|future| assert!(future.as_mut().poll(noop).is_pending()));
        loading.iter_mut().for_each(|future| assert!(future.as_mut().poll(noop).is_pending()));
    }
    assert_eq!(cache.stats().loads, 5, "three beside each other");
    drop(cache.remove(&1)); // detaches them all
    gate.store(true, SeqCst);
    for (future, text) in loading.iter_mut().zip(["one", "two", "three"]) {
        let Poll::Ready(value) = future.as_mut().poll(noop) else { panic!("it is loaded") };
        assert_eq!(*value.expect("it loads"), text);
    }
    assert!(!cache.contains_key(&1), "what they brought may be out of date");
}

#[test]
fn a_future_that_asks_for_the_key_that_it_loads_panics_and_says_why() {
    let cache = Texts::new(10);
    let load = || Ok::<_, ()>("text".to_owned());
    let own_key = |future: Pin<Box<dyn Future<Output = ()> + '_>>| {
        let mut future = future;
        let poll = || future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        let panic = catch_unwind(AssertUnwindSafe(poll)).expect_err("it would wait for itself");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"a load asks for the key that it loads"));
    };
    own_key(Box::pin(async {
        let within = async {
            drop(cache.get_or_insert_async(&1, async { load() }).await);
            load()
        };
        drop(cache.get_or_insert_async(&1, within).await);
    }));
    own_key(Box::pin(async {
        let within = async {
            drop(cache.try_get_with(&1, load));
            load()
        };
        drop(cache.get_or_insert_async(&1, within).await);
    }));
    own_key(Box::pin(async {
        drop(cache.get_or_insert_with(&1, || {
            block_on(async { drop(cache.try_get_async(&1, async { load() }).await) });
            load()
        }));
    }));
    // Another key is fine, and so is the same one afterwards.
    let within = async {
        Ok::<_, ()>(cache.get_or_insert_async(&2, async { load() }).await?.to_uppercase())
    };
    assert_eq!(
        block_on(async { cache.get_or_insert_async(&1, within).await.map(|value| value.len()) }),
        Ok(4)
    );
    assert_eq!(cache.get_cloned(&1).as_deref(), Some("TEXT"));
}

#[test]
fn wakers_of_futures_that_were_dropped_are_gone() {
    struct Nothing;

    impl Wake for Nothing {
        fn wake(self: Arc<Self>) {}
    }

    let (cache, source) = (Texts::new(10), Source::default());
    let mut loads = Box::pin(cache.get_or_insert_async(&1, source.fail()));
    assert!(loads.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let nothing = Arc::new(Nothing);
    let waker = Waker::from(Arc::clone(&nothing));
    let before = Arc::strong_count(&nothing);
    let mut waits = Box::pin(cache.get_or_insert_async(&1, source.fail()));
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(Arc::strong_count(&nothing), before + 1, "one each");
    drop(waits);
    assert_eq!(Arc::strong_count(&nothing), before);
}
