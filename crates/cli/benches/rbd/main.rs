//! Floe above an image of Ceph beside librbd alone, on a cluster that the benchmark starts.
//!
//! Every way to a volume has an image of its own and takes turns with the others, in another order
//! each round. The tables have medians over the rounds, and medians of the rounds' ratios with
//! their 95 % intervals. `docs/results/rbd.md` explains them; `scripts/results-rbd` writes them
//! there.
//!
//! `--rounds` and `--seconds` (of a turn) make it longer. `--caches` names the folder of the
//! caches, which should not be on the disk of the cluster's data; that one is where TMPDIR is.

mod subject;
mod turn;

use std::io::Write;

use floe_lab::bench::Estimate;
use floe_testkit::Ceph;

use subject::{COLD_RANGE, Measured, Subject, WARM_RANGE};
use turn::{Load, Turn};

const KIB: u64 = 1 << 10;
const SIZES: [u64; 2] = [4 * KIB, 64 * KIB];
const DEPTHS: [usize; 2] = [1, 16];
/// The way that the others are compared with, among the warm and the cold ones.
const RIVAL: usize = 0;

/// A load, and the measurements of each way in each round.
struct Cell {
    load: Load,
    bytes: u64,
    depth: usize,
    measured: Vec<Vec<Measured>>,
}

impl Cell {
    fn title(&self) -> String {
        let what = if self.load == Load::Read { "reads" } else { "writes" };
        format!("{what} of {} KiB, {} in flight", self.bytes / KIB, self.depth)
    }

    /// The ratios of a way to the rival, round by round.
    fn ratio(&self, way: usize, of: impl Fn(&Measured) -> f64) -> Estimate {
        let all = |way: usize| self.measured[way].iter().map(&of).collect::<Vec<_>>();
        Estimate::of_ratios(&all(way), &all(RIVAL))
    }

    fn median(&self, way: usize, of: impl Fn(&Measured) -> f64) -> f64 {
        Estimate::of(self.measured[way].iter().map(of)).median
    }
}

fn rate(measured: &Measured) -> f64 {
    measured.outcome.requests as f64 / measured.outcome.seconds
}

fn cells(load: Load, ways: usize) -> Vec<Cell> {
    let empty = || (0..ways).map(|_| Vec::new()).collect();
    let mut cells = Vec::new();
    for bytes in SIZES {
        cells.extend(DEPTHS.map(|depth| Cell { load, bytes, depth, measured: empty() }));
    }
    cells
}

/// Has all ways take their turns.
fn measure(ways: &mut [Subject], cells: &mut [Cell], rounds: usize, seconds: f64) {
    for round in 0..rounds {
        for cell in &mut *cells {
            for turn in 0..ways.len() {
                let at = (turn + round) % ways.len();
                let way = &mut ways[at];
                let range = if way.is_cold { COLD_RANGE } else { WARM_RANGE };
                let (bytes, depth) = (cell.bytes, cell.depth);
                let seed = (round * 1000 + cell.depth) as u64 * 1000 + bytes / KIB;
                let turn = Turn { load: cell.load, bytes, depth, seconds, range, seed };
                cell.measured[at].push(way.take(turn));
                if cell.load == Load::Write {
                    // Not counted, for any way: what one puts off does not slow the next one.
                    way.drain();
                }
            }
        }
    }
}

fn print(out: &mut impl Write, ways: &[Subject], cells: &[Cell]) -> std::io::Result<()> {
    for cell in cells {
        writeln!(out, "\n{}:\n", cell.title())?;
        let head = "| way | requests/s | × librbd | p50 µs | × librbd | p99 µs | processor µs | × \
                    librbd | with client µs |";
        writeln!(out, "{head}\n|---|---:|---:|---:|---:|---:|---:|---:|---:|")?;
        for (at, way) in ways.iter().enumerate() {
            let of = |of: fn(&Measured) -> f64| cell.median(at, of);
            let to = |of: fn(&Measured) -> f64| match cell.ratio(at, of) {
                _ if at == RIVAL => "1".to_owned(),
                ratio => format!("{:.2} ({:.2}–{:.2})", ratio.median, ratio.low, ratio.high),
            };
            writeln!(
                out,
                "| {} | {:.0} | {} | {:.0} | {} | {:.0} | {:.1} | {} | {:.1} |",
                way.name,
                of(rate),
                to(rate),
                of(|it| it.outcome.p50_us),
                to(|it| it.outcome.p50_us),
                of(|it| it.outcome.p99_us),
                of(|it| it.cpu_us),
                to(|it| it.cpu_us),
                of(|it| it.cpu_all_us),
            )?;
        }
    }
    Ok(())
}

/// The value of an option.
fn option<'a>(arguments: &'a [String], name: &str) -> Option<&'a String> {
    let at = arguments.iter().position(|argument| argument == name)?;
    Some(arguments.get(at + 1).expect("the option has a value"))
}

fn number(arguments: &[String], name: &str, default: f64) -> f64 {
    let text = option(arguments, name);
    text.map_or(default, |text| text.parse().expect("the value is a number"))
}

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, turns, kind, address] = &arguments[..]
        && turns == "--turns"
    {
        turn::serve_turns(kind, address);
        return Ok(());
    }
    let rounds = number(&arguments, "--rounds", 3.0) as usize;
    let seconds = number(&arguments, "--seconds", 0.2);
    let Some(ceph) = Ceph::start_on_disk() else { return Ok(()) };
    let parent = option(&arguments, "--caches").map_or_else(std::env::temp_dir, Into::into);
    let folder = tempfile::tempdir_in(parent)?;
    let memory = ["--memory", "256MiB"];
    // Nothing is written back in another one's turn.
    let back = ["--write", "back", "--flush-interval", "1h"];
    let volatile = [&["--write", "through", "--volatile"], &memory[..]].concat();
    let floe = |name, is_cold, settings: &[&str]| {
        Subject::floe(&ceph, folder.path(), name, is_cold, settings)
    };
    let mut warm = [
        Subject::librbd(&ceph, "librbd", false, false),
        Subject::librbd(&ceph, "librbd with rbd_cache", true, false),
        floe("Floe, through", false, &[&["--write", "through"], &memory[..]].concat()),
        floe("Floe, through, volatile", false, &volatile),
        floe("Floe, back", false, &[&back[..], &memory[..]].concat()),
        floe("Floe, back, mirror", false, &[&back[..], &memory[..], &["mirror"]].concat()),
        floe("Floe, back, no memory tier", false, &back),
    ];
    // Reads first: the memory tier forgets what is written.
    let mut reads = cells(Load::Read, warm.len());
    measure(&mut warm, &mut reads, rounds, seconds);
    let mut writes = cells(Load::Write, warm.len());
    measure(&mut warm, &mut writes, rounds, seconds);
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n### Hits and writes")?;
    print(&mut out, &warm, &reads)?;
    print(&mut out, &warm, &writes)?;
    drop(warm);

    let small = ["--block-sizes", "4KiB,8KiB,16KiB,32KiB,64KiB"];
    let mut cold = [
        Subject::librbd(&ceph, "librbd, cold", false, true),
        floe("Floe without a cache", true, &["--write", "pass"]),
        floe("Floe, cold", true, &[]),
        floe("Floe, cold, 4 KiB blocks", true, &small),
    ];
    let mut cold_cells = cells(Load::Read, cold.len());
    measure(&mut cold, &mut cold_cells, rounds, seconds);
    writeln!(out, "\n### Misses")?;
    print(&mut out, &cold, &cold_cells)
}
