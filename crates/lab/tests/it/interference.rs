//! How writes slow reads, on media whose figures are known.

use std::time::Duration;

use floe_device::Medium;
use floe_lab::interference::{
    Derived, LOSS_MAX, MeasureError, Plan, Point, TestBed, derive, measure,
};

const SHARES: [f64; 7] = [0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5];

fn plan(write_shares: &[f64], depth: usize, round: Duration) -> Plan {
    Plan { block_bytes: vec![4096], write_shares: write_shares.to_vec(), depth, rounds: 3, round }
}

fn bed(medium: &str) -> TestBed {
    let spec = format!("memory:64MiB,medium={medium}").parse().expect("a spec");
    TestBed::simulated(&spec, 64 << 20, 1 << 20).expect("a bed")
}

fn points(medium: &str, plan: &Plan) -> Vec<Point> {
    measure(&mut bed(medium), plan, |_| true).expect("a measurement")
}

fn derived(medium: &str, round: Duration) -> Derived {
    derive(&points(medium, &plan(&SHARES, 16, round)), None, LOSS_MAX)
        .expect("a point without writes")
}

#[test]
fn alone_a_medium_reads_what_its_data_sheet_says() {
    for (name, depth) in [("pmem", 16), ("optane", 16), ("nvme", 64), ("sata-ssd", 64)] {
        let medium = Medium::named(name).expect("a medium");
        let found = &points(name, &plan(&[0.0], depth, Duration::from_millis(200)))[0];
        let operations = medium
            .read
            .operations_per_second
            .min(f64::from(medium.servers) / medium.read.median_ns * 1e9);
        let by_bandwidth = medium.read.bytes_per_second;
        let expected =
            if name == "pmem" { by_bandwidth } else { by_bandwidth.min(4096.0 * operations) };
        let off = found.read_bytes_per_second / expected - 1.0;
        assert!(off.abs() < 0.1, "{name}: {off}");
        assert_eq!((found.write_bytes_per_second, found.write_us_mean), (0.0, None));
    }
}

#[test]
fn the_share_of_writes_is_the_one_asked_for() {
    for point in points("optane", &plan(&SHARES, 16, Duration::from_millis(50))) {
        let all = point.read_bytes_per_second + point.write_bytes_per_second;
        let share = point.write_bytes_per_second / all;
        assert!((share - point.write_share).abs() < 0.002, "{share} {point:?}");
    }
}

#[test]
fn as_many_are_in_flight_as_it_is_told() {
    // By Little's law.
    let point = &points("nvme", &plan(&[0.0], 7, Duration::from_millis(100)))[0];
    let in_flight = point.read_bytes_per_second / 4096.0 * point.read_us_mean / 1e6;
    assert!((in_flight - 7.0).abs() < 0.1, "{in_flight}");
}

#[test]
fn interference_makes_writes_dear_and_its_absence_makes_them_cost_their_time() {
    let short = Duration::from_millis(4);
    let [pmem, dram, optane] =
        ["pmem", "dram", "optane"].map(|medium| derived(medium, short).write_cost);
    assert!(pmem > 2.0 * optane.max(dram), "{pmem} {optane} {dram}");
    let cloud = derived("cloud", Duration::from_secs(1)).write_cost;
    assert!((0.9..1.1).contains(&cloud), "one bus, on which a write is as long as a read: {cloud}");
}

#[test]
fn the_same_plan_gives_the_same_figures() {
    let run = || points("nvme", &plan(&SHARES, 16, Duration::from_millis(20)));
    assert_eq!(run(), run());
}

#[test]
fn a_round_too_short_for_the_medium_and_an_interruption_are_said() {
    let short = plan(&[0.0], 1, Duration::from_micros(10));
    assert!(matches!(
        measure(&mut bed("hdd"), &short, |_| true),
        Err(MeasureError::TooShort { .. })
    ));
    let mut told = Vec::new();
    let stop = |ended| {
        told.push(ended);
        ended < 2
    };
    let plan = plan(&SHARES, 16, Duration::from_millis(5));
    assert!(matches!(measure(&mut bed("nvme"), &plan, stop), Err(MeasureError::Interrupted)));
    assert_eq!(told, [1, 2]);
}
