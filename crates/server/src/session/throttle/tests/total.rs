//! Tests of the lines for the rate of the server.

use super::*;

#[test]
fn volumes_share_the_rate_of_the_server_by_weight() {
    let begun = Instant::now();
    let (total, throttles) = with_total(100, begun);
    total.set_weights(1, 300, Vec::new(), begun);
    // The first volume has ten connections on both threads, the other one on the second thread.
    let connections = |thread: usize| match thread {
        0 => (0..10).map(|connection| (connection, VolumeId(0))).collect::<Vec<_>>(),
        _ => (10..20).map(|it| (it, VolumeId(0))).chain([(20, VolumeId(1))]).collect(),
    };
    let (mut started, mut waiting) = ([0; 2], [false; 21]);
    for step in 0..4000 {
        let now = begun + step * Duration::from_millis(1);
        for (thread, throttle) in throttles.iter().enumerate() {
            while let Some((connection, volume)) = throttle.next_in_turn(now) {
                started[usize::from(volume.0)] += 1;
                wait(throttle, connection, volume, now);
            }
            for (connection, volume) in connections(thread) {
                if !std::mem::replace(&mut waiting[connection as usize], true)
                    && take(throttle, connection, volume, now)
                {
                    started[usize::from(volume.0)] += 1;
                    waiting[connection as usize] = false;
                }
            }
            throttle.check();
        }
    }
    assert!((99..=102).contains(&started[0]), "{started:?}");
    assert!((298..=302).contains(&started[1]), "{started:?}");
    // One that leaves while it waits makes room for others. A volume that is removed, and a server
    // that ends, wait for nothing.
    let now = begun + Duration::from_secs(4);
    (0..9).for_each(|connection| throttles[0].leave(connection, now));
    throttles[1].set(VolumeId(1), None, now);
    assert_eq!(throttles[1].next_in_turn(now), Some((20, VolumeId(1))));
    assert!(take(&throttles[1], 21, VolumeId(1), now));
    throttles[1].lift(now);
    let gone: Vec<u32> = std::iter::from_fn(|| throttles[1].next_in_turn(now))
        .map(|(connection, _)| connection)
        .collect();
    assert_eq!(gone.len(), 10);
    assert!(throttles[0].next_in_turn(now + Duration::from_millis(10)).is_some());
    assert!(!throttles.iter().any(Throttle::is_waited_for));
}

#[test]
fn clients_share_their_volumes_part_of_the_rate_of_the_server_by_weight() {
    // Without a limit of the volume, with one that is not reached, and with one of each client.
    for (of_volume, of_each) in [(None, None), (Some(1000), None), (None, Some(1000))] {
        let begun = Instant::now();
        let (total, throttles) = with_total(400, begun);
        let (divided, other) = (VolumeId(0), VolumeId(1));
        let weight = |weight| ClientLimit { weight, ..ClientLimit::default() };
        let of = |even, others| -> NamedClients {
            [(name(0), weight(even)), (ClientName::Others, weight(others))].into_iter().collect()
        };
        let set = |clients: NamedClients, now| {
            total.set_weights(divided.0, 100, clients.weights(), now);
            let limit = limits_with(of_volume, of_each, clients).limit();
            let shared = Arc::new(VolumeLimit::since(limit, begun));
            throttles.iter().for_each(|it| it.set(divided, Some(Arc::clone(&shared)), now));
        };
        set(of(700, 100), begun);
        // The volume has two clients on both threads, one of them without a name, and half of the
        // rate. Other volumes have the other half.
        let mut started = [0; 3];
        let mut waiting = std::collections::BTreeSet::new();
        for step in 0..8000 {
            let now = begun + step * Duration::from_micros(500);
            if step == 4000 {
                assert!((395..=405).contains(&started[2]), "{started:?}");
                assert!((343..=357).contains(&started[0]), "{started:?}");
                assert!((47..=53).contains(&started[1]), "{started:?}");
                started = [0; 3];
                // Another name moves the numbers of the others.
                let more = [(ClientName::Host("another".into()), weight(1000))];
                let less = of(100, 300);
                set(less.iter().map(|(it, limit)| (it.clone(), *limit)).chain(more).collect(), now);
            }
            for (thread, throttle) in throttles.iter().enumerate() {
                let all = (0..12).map(|it| (it, divided)).chain([(12, other)]);
                let kind = |(connection, volume): (u32, VolumeId)| match volume == other {
                    true => 2,
                    false => connection as usize % 2,
                };
                while let Some((connection, volume)) = throttle.next_in_turn(now) {
                    started[kind((connection, volume))] += 1;
                    wait(throttle, connection, volume, now);
                }
                for (connection, volume) in all.filter(|it| it.0 as usize / 2 % 2 == thread) {
                    while waiting.insert(connection) && take(throttle, connection, volume, now) {
                        started[kind((connection, volume))] += 1;
                        waiting.remove(&connection);
                    }
                }
                throttle.check();
            }
        }
        assert!((98..=106).contains(&started[0]), "{started:?}");
        assert!((294..=306).contains(&started[1]), "{started:?}");
    }
}

#[test]
fn a_request_waits_for_its_volume_before_the_server_and_gives_back_all_it_took() {
    let begun = Instant::now();
    let (_, [throttle, _]) = with_total(1, begun);
    let [slow, other] = [VolumeId(0), VolumeId(1)];
    let shared = limits(Some(10), Some(5));
    throttle.set(slow, Some(Arc::clone(&shared)), begun);
    assert!(take(&throttle, 0, slow, begun));
    assert!(!take(&throttle, 2, slow, begun) && !take(&throttle, 3, slow, begun));
    assert!(!take(&throttle, 1, other, begun));
    throttle.check();
    // The other volume's request is the only one that waits for the server, until the limits of the
    // volume and its client have come.
    assert_eq!(throttle.first_due(begun), None);
    let now = begun + Duration::from_millis(300);
    assert_eq!(throttle.first_due(now), None);
    throttle.check();
    throttle.leave(3, now);
    throttle.leave(2, now);
    // Both have left the last line, so both limits are whole again.
    let client = name(2);
    assert_eq!(shared.reserve(Scope::Client(&client), 0, now).start, now);
    assert_eq!(shared.reserve(Scope::Volume, 0, now).start, now);
    let later = begun + Duration::from_secs(1);
    assert_eq!(throttle.next_in_turn(later), Some((1, other)));
    assert!(!throttle.is_waited_for());
}

#[test]
fn each_request_starts_once_within_the_rate_of_the_server_whatever_happens() {
    const VOLUMES: usize = 4;
    for seed in 0..200 {
        let mut random = Random(seed);
        let (begun, mut now) = (Instant::now(), Duration::ZERO);
        let (total, throttles) = with_total(100, begun);
        let mut rate = Some(100);
        let mut shared = [(); VOLUMES].map(|()| limits(None, None));
        let mut exempt = [false; VOLUMES];
        let mut models = [Waiting::new(), Waiting::new()];
        let mut starts: Vec<Duration> = Vec::new();
        for _ in 0..400 {
            let (at, connection) = (random.below(2), random.below(6) as u32);
            let volume = random.below(VOLUMES);
            let id = VolumeId(volume as u16);
            let time = begun + now;
            let is_free = || throttles.iter().any(|it| it.state.borrow().total.is_free());
            let was_free = is_free();
            match random.below(16) {
                0 => {
                    rate = [None, Some(1), Some(100)][random.below(3)];
                    total.change(total_rates(rate), time);
                    for (thread, throttle) in throttles.iter().enumerate() {
                        throttle.set_total(&total, thread, time);
                    }
                    starts.clear();
                }
                1 => {
                    let weight = 1 + random.below(1000) as u64;
                    let clients = shared[volume].limit().clients.weights();
                    total.set_weights(id.0, weight, clients, time);
                }
                2 => {
                    let mut rate = || [None, Some(3), Some(100)][random.below(3)];
                    let (of_volume, of_client) = (rate(), rate());
                    let clients = [0, 1].map(|it| (it, [1, 7, 300, 1000][random.below(4)]));
                    let clients = weights(&clients[..random.below(3)], of_client);
                    total.set_weights(id.0, 100, clients.weights(), time);
                    shared[volume] = limits_with(of_volume, of_client, clients);
                    exempt[volume] = random.below(4) == 0;
                    let limit = Some(&shared[volume]).filter(|_| !exempt[volume]);
                    throttles.iter().for_each(|it| it.set(id, limit.cloned(), time));
                }
                3 => {
                    throttles[at].leave(connection, time);
                    models[at].retain(|(of, _), _| *of != connection);
                }
                4 => {
                    throttles[at].leave_line(connection, id, time);
                    models[at].remove(&(connection, id.0));
                }
                5..9 => {
                    now += Duration::from_micros(random.below(40_000) as u64);
                    let time = begun + now;
                    while let Some((connection, volume)) = throttles[at].next_in_turn(time) {
                        let key = (connection, volume.0);
                        let left = models[at].get_mut(&key).expect("it waits");
                        *left -= 1;
                        match *left {
                            0 => drop(models[at].remove(&key)),
                            _ => wait(&throttles[at], connection, volume, time),
                        }
                        if !exempt[usize::from(volume.0)] {
                            starts.push(now);
                        }
                    }
                }
                _ => match models[at].get_mut(&(connection, id.0)) {
                    Some(waiting) => *waiting += 1,
                    None if take(&throttles[at], connection, id, time) => {
                        if !exempt[volume] {
                            starts.push(now);
                        }
                    }
                    None => drop(models[at].insert((connection, id.0), 1)),
                },
            }
            for (throttle, model) in throttles.iter().zip(&models) {
                let time = begun + now;
                assert_eq!(throttle.is_waited_for(), !model.is_empty(), "seed {seed}");
                assert_eq!(throttle.next_due_since(|| time).is_some(), !model.is_empty());
                throttle.check();
            }
            // Those that waited when a volume was exempt, or when the rate was lifted, all go.
            let Some(rate) = rate.filter(|_| !was_free && !is_free()) else {
                starts.clear();
                continue;
            };
            for (count, first) in starts.iter().rev().enumerate() {
                let allowed = 2.0 + 6.0 + (now - *first).as_secs_f64() * rate as f64;
                assert!(count as f64 <= allowed, "seed {seed}: {count} in {:?}", now - *first);
            }
        }
        // In the end, all start by themselves.
        let mut turns = 0;
        while throttles.iter().any(Throttle::is_waited_for) {
            let due = throttles.iter().filter_map(|it| it.next_due_since(|| begun + now)).min();
            now = now.max(due.expect("something waits") - begun) + Duration::from_micros(1);
            for (throttle, model) in throttles.iter().zip(&mut models) {
                while let Some((connection, volume)) = throttle.next_in_turn(begun + now) {
                    let left = model.get_mut(&(connection, volume.0)).expect("it waits");
                    *left -= 1;
                    match *left {
                        0 => drop(model.remove(&(connection, volume.0))),
                        _ => wait(throttle, connection, volume, begun + now),
                    }
                }
            }
            turns += 1;
            assert!(turns < 100_000, "seed {seed}: a request waits for ever");
        }
        assert!(models.iter().all(Waiting::is_empty), "seed {seed}");
    }
}
