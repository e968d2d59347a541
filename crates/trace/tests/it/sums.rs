//! The figures of `floe trace info`, against sets and sums too simple to be wrong.

use std::collections::{HashMap, HashSet};

use crate::common::{any_request, given, open, write};
use floe_trace::{Info, Kind, Op, Request, Stats};
use proptest::prelude::*;

fn sum(kind: Kind, requests: &[Request]) -> Info {
    let mut stats = Stats::new(kind);
    requests.iter().for_each(|request| stats.add(request));
    stats.info("t", "any")
}

proptest! {
    #[test]
    fn a_block_traces_footprint_is_the_set_of_its_blocks(
        mut requests in prop::collection::vec(any_request(), 1..60),
    ) {
        requests.iter_mut().for_each(|request| request.key %= 1 << 24);
        let blocks = |request: &Request| {
            let (volume, first) = (request.volume, request.key / 4096);
            (first..(request.key + request.bytes).div_ceil(4096)).map(move |block| (volume, block))
        };
        let touched: Vec<_> = requests.iter().flat_map(blocks).collect();
        let distinct = touched.iter().collect::<HashSet<_>>().len() as u64;
        let info = sum(Kind::Block, &requests);
        prop_assert_eq!((info.unique, info.footprint_bytes), (distinct, distinct * 4096));
        prop_assert_eq!(info.touches, touched.len() as u64);
        prop_assert_eq!(info.requests, requests.len() as u64);
        let reads = requests.iter().filter(|request| request.op == Op::Read).count();
        prop_assert_eq!(info.reads, reads as u64);
        prop_assert_eq!(info.reads + info.writes, info.requests);
    }

    #[test]
    fn an_object_counts_once_at_the_largest_size_it_was_seen_with(
        mut requests in prop::collection::vec(any_request(), 1..60),
    ) {
        requests.iter_mut().for_each(|request| request.key %= 9);
        let mut sizes = HashMap::new();
        for request in &requests {
            let size = sizes.entry(request.key).or_insert(0);
            *size = request.bytes.max(*size);
        }
        let info = sum(Kind::Object, &requests);
        prop_assert_eq!(info.unique, sizes.len() as u64);
        prop_assert_eq!(info.footprint_bytes, sizes.values().sum::<u64>());
    }
}

#[test]
fn the_same_place_on_two_disks_is_two_blocks_and_nothing_touches_nothing() {
    let request = Request { time_ns: 0, key: 100, bytes: 1, volume: 0, op: Op::Read };
    let other = Request { volume: 1, ..request };
    let none = Request { bytes: 0, ..request };
    let info = sum(Kind::Block, &[request, other, none]);
    assert_eq!((info.unique, info.touches, info.requests), (2, 2, 3));
    assert_eq!(info.rereference_ratio(), 0.0);
}

#[test]
fn a_huge_footprint_costs_a_bit_per_block() {
    let read = |key| Request { time_ns: 0, key, bytes: 1 << 32, volume: 0, op: Op::Read };
    let requests: Vec<_> = (0..256).map(|i| read(i << 32)).collect();
    assert_eq!(sum(Kind::Block, &requests).footprint_bytes, 1 << 40);
}

#[test]
fn the_figures_print_under_the_names_users_rely_on() {
    let text = write("spc", &crate::common::requests(5));
    let info = Info::of(&mut open(&text, &given("spc")).unwrap()).unwrap();
    assert_eq!(
        serde_json::to_string(&info).unwrap(),
        "{\"trace\":\"t\",\"format\":\"spc\",\"requests\":5,\"reads\":3,\"writes\":2,\"unique\":5,\
         \"footprint_bytes\":20480,\"mean_bytes\":1536.0,\"seconds\":4.0}"
    );
}

#[test]
fn an_empty_trace_sums_up_to_zeros() {
    let info = Info::of(&mut open(b"", &given("spc")).unwrap()).unwrap();
    assert_eq!((info.requests, info.mean_bytes, info.rereference_ratio()), (0, 0.0, 0.0));
}
