//! Turns arguments into the points of the measurement, and each point into the caches that run in
//! turn.
//!
//! A point is one combination of the values of all list arguments except the policies. It has one
//! cache for each policy, and one for each `--vs`, which is the first cache with some changes.

use std::path::Path;

use floe_lab::bench::{
    CALIBRATED_POLICIES, Cache, Calibrate, Calibration, Disk, Figure, Freezing, Load, MeasureStep,
    PassOrder, Plan, Setup, calibrate,
};
use floe_policy::admission::Admissions;
use floe_policy::registry::Choice;

use super::{Arguments, DiskTimes};
use crate::error::{CliError, OrFail};
use crate::output;
use floe_lab::sizes::CacheSize;
use floe_server::config::Bytes;

/// Default policy of measured caches.
const POLICY: &str = "qd-clock";

/// Minimum size of a value in bytes: a value begins with its key, by which a hit is verified.
const VALUE_BYTES_MIN: u64 = 8;

/// Maximum size of a value in bytes. Larger values would measure the memory allocator.
const VALUE_BYTES_MAX: u64 = 64 << 20;

/// Maximum time of an emulated disk, in microseconds.
const DISK_US_MAX: f64 = 100e6;

/// Maximum number of threads. More would measure the scheduler.
const THREADS_MAX: usize = 1024;

/// Maximum number of clients, each of which takes an entry of a list.
const MPL_MAX: usize = 1 << 20;

/// The capacity of a cache to measure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Capacity {
    /// A number of entries, or a share of the keys.
    Size(CacheSize),
    /// The capacity at which the cache has this hit ratio.
    HitRatio(f64),
}

/// The configuration of a cache to measure.
#[derive(Debug, Clone)]
pub(super) struct Configuration {
    pub(super) policy: Choice,
    /// Admission policy; `None` admits everything.
    pub(super) admission: Option<Admissions>,
    pub(super) shards: Option<usize>,
    pub(super) capacity: Capacity,
    pub(super) value_bytes: usize,
    pub(super) freezing: Freezing,
    threads: usize,
    /// Number of clients; `None` means one for each thread.
    mpl: Option<usize>,
    disk_us: f64,
    exponential: bool,
}

impl Configuration {
    pub(super) fn setup(&self) -> Setup {
        Setup {
            threads: self.threads,
            mpl: self.mpl.unwrap_or(self.threads),
            disk: Disk {
                mean_ns: (self.disk_us * 1e3).round() as u64,
                exponential: self.exponential,
            },
        }
    }

    /// Checks that all values are possible. Errors name the option that sets the value.
    fn check(&self) -> Result<(), String> {
        let Setup { threads, mpl, .. } = self.setup();
        check_threads(threads)?;
        if mpl > MPL_MAX {
            return Err(format!("--mpl {mpl}: there may be up to {MPL_MAX} clients"));
        }
        if mpl < threads {
            return Err(format!("--mpl {mpl}: each of {threads} threads needs a client"));
        }
        if !(0.0..=DISK_US_MAX).contains(&self.disk_us) {
            return Err(format!(
                "--disk-us {}: a disk takes 0 to {DISK_US_MAX} microseconds",
                self.disk_us
            ));
        }
        if let Capacity::HitRatio(ratio) = self.capacity
            && !(ratio > 0.0 && ratio <= 1.0)
        {
            return Err(format!("--hit-ratio {ratio} is not a share above 0 and up to 1"));
        }
        if let (Capacity::HitRatio(_), Some(admission)) = (self.capacity, &self.admission) {
            return Err(format!(
                "--hit-ratio is searched without an admission; give {admission} a --capacity"
            ));
        }
        if let Capacity::Size(CacheSize::Bytes(_)) = self.capacity {
            return Err(
                "--capacity takes a number of entries or a share of the keys, not bytes".to_owned()
            );
        }
        check_value(self.value_bytes)?;
        // A small cache tests whether a large one is possible.
        let cache = Cache {
            policy: &self.policy,
            admission: self.admission.as_ref(),
            shards: self.shards,
            capacity: 1,
            value_bytes: self.value_bytes,
            freezing: self.freezing,
        };
        cache.build(self.setup()).map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Applies the changes that a `--vs` describes.
    fn change(&mut self, text: &str) -> Result<(), String> {
        for part in text.split(',') {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let whole = || match value.parse() {
                Ok(count) if count > 0 => Ok(count),
                _ => Err(format!("{name}: `{value}` is not a whole number of at least 1")),
            };
            let number =
                || value.parse::<f64>().map_err(|_| format!("{name}: `{value}` is not a number"));
            match name {
                "policy" => self.policy = value.parse().map_err(|error| format!("{error}"))?,
                "admit" => self.admission = admission(value)?,
                "shards" => self.shards = Some(whole()?),
                "capacity" => self.capacity = Capacity::Size(value.parse()?),
                "hit-ratio" => self.capacity = Capacity::HitRatio(number()?),
                "value" => self.value_bytes = value.parse::<Bytes>()?.0 as usize,
                "threads" => self.threads = whole()?,
                "mpl" => self.mpl = Some(whole()?),
                "disk-us" => self.disk_us = number()?,
                "frozen" => self.freezing.frozen = value.parse()?,
                "lifetime" => self.freezing.lifetime = value.parse()?,
                _ => {
                    return Err(format!(
                        "`{name}` cannot be changed; there are policy, admit, shards, capacity, \
                         hit-ratio, value, threads, mpl, disk-us, frozen, lifetime"
                    ));
                }
            }
        }
        Ok(())
    }
}

pub(super) fn check_threads(threads: usize) -> Result<(), String> {
    if threads > THREADS_MAX {
        return Err(format!("--threads {threads}: there may be up to {THREADS_MAX}"));
    }
    Ok(())
}

pub(super) fn check_value(bytes: usize) -> Result<(), String> {
    if !(VALUE_BYTES_MIN..=VALUE_BYTES_MAX).contains(&(bytes as u64)) {
        return Err(format!("--value {bytes}: a value has 8 bytes to 64MiB"));
    }
    Ok(())
}

/// Returns the policies that the user gave, or else those of a default list.
pub(super) fn policies(arguments: &Arguments, default: &str) -> Result<Vec<Choice>, CliError> {
    let parsed = |policy: &str| {
        policy.parse().map_err(|error| CliError::usage(format!("--policy: {error}")))
    };
    match &arguments.policy {
        Some(given) => given.iter().map(|policy| parsed(policy)).collect(),
        None => default.split(',').map(parsed).collect(),
    }
}

/// Parses an admission policy; `off` is none.
fn admission(text: &str) -> Result<Option<Admissions>, String> {
    if text == "off" {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error| format!("{error}"))
}

/// Returns the number of threads that can run in parallel.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns all points in the order of the lists, each with its caches.
pub(super) fn points(arguments: &Arguments) -> Result<Vec<Vec<Configuration>>, CliError> {
    let policies = policies(arguments, POLICY)?;
    let admission = admission(&arguments.admit)
        .map_err(|problem| CliError::usage(format!("--admit: {problem}")))?;
    let threads = arguments.threads.as_ref().map_or(vec![cores()], |threads| threads.0.clone());
    let mpls: Vec<Option<usize>> = arguments
        .mpl
        .as_ref()
        .map_or(vec![None], |mpls| mpls.0.iter().copied().map(Some).collect());
    let capacities: Vec<Capacity> = match &arguments.hit_ratio {
        Some(ratios) => ratios.0.iter().copied().map(Capacity::HitRatio).collect(),
        None => arguments.capacity.0.iter().copied().map(Capacity::Size).collect(),
    };
    let mut points = Vec::new();
    for &threads in &threads {
        for &mpl in &mpls {
            for &disk_us in &arguments.disk_us.0 {
                for &capacity in &capacities {
                    let configuration = |policy: &Choice| Configuration {
                        policy: policy.clone(),
                        admission: admission.clone(),
                        shards: arguments.shards.map(|shards| shards as usize),
                        capacity,
                        value_bytes: arguments.value.0 as usize,
                        freezing: Freezing {
                            frozen: arguments.frozen,
                            lifetime: arguments.lifetime,
                        },
                        threads,
                        mpl,
                        disk_us,
                        exponential: arguments.disk_times == DiskTimes::Exponential,
                    };
                    points
                        .push(caches(policies.iter().map(configuration).collect(), &arguments.vs)?);
                }
            }
        }
    }
    Ok(points)
}

/// Returns the caches of a point: those given, and one for each `--vs`.
fn caches(mut caches: Vec<Configuration>, vs: &[String]) -> Result<Vec<Configuration>, CliError> {
    for cache in &caches {
        cache.check().map_err(CliError::usage)?;
    }
    for text in vs {
        let mut other = caches[0].clone();
        other
            .change(text)
            .and_then(|()| other.check())
            .map_err(|problem| CliError::usage(format!("--vs {text}: {problem}")))?;
        caches.push(other);
    }
    Ok(caches)
}

/// The default plan for measuring single operations: many short runs, because the times of all runs
/// are compared.
const PLAN: Plan = Plan {
    repetitions: 21,
    seconds: 0.05,
    warm_up_seconds_max: 60.0,
    in_step: false,
    disturbed_max: None,
};

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let how = super::plan(arguments, &PLAN)?;
    let policies = policies(arguments, CALIBRATED_POLICIES)?;
    let threads = match &arguments.threads {
        None => cores(),
        Some(counts) => match counts.0[..] {
            [threads] => threads,
            _ => {
                return Err(CliError::usage(
                    "--calibrate takes one number of --threads, the largest",
                ));
            }
        },
    };
    let value_bytes = arguments.value.0 as usize;
    check_threads(threads).and_then(|()| check_value(value_bytes)).map_err(CliError::usage)?;
    let stream = super::read(arguments, 0)?;
    let load = Load::new(&stream, None, PassOrder::Drawn).or_usage()?;
    let what = Calibrate {
        load: &load,
        stream: &stream,
        policies: &policies,
        threads,
        value_bytes,
        plan: how,
    };
    what.check().or_usage()?;
    if let Some(file) = &arguments.service_out {
        // Opened before the measurement, so that an unwritable file is found early.
        std::fs::OpenOptions::new().append(true).create(true).open(file).map_err(refused(file))?;
    }
    let bar = output::progress(0, "calibrating");
    let calibrated = calibrate(&what, |step| match step {
        MeasureStep::WarmingUp(at) => bar.set_message(format!("warming up cache {}", at + 1)),
        MeasureStep::PlayingOn => {} // does not come: they are not kept in step
        MeasureStep::Run(done, runs) => {
            bar.set_length(runs as u64);
            bar.set_position(done as u64);
            bar.set_message("calibrating");
        }
    });
    bar.finish_and_clear();
    let Calibration { service, figures } = calibrated.or_failure()?;
    if let Some(file) = &arguments.service_out {
        let text = serde_json::to_string_pretty(&service).or_failure()?;
        std::fs::write(file, text + "\n").map_err(refused(file))?;
    }
    if arguments.json {
        figures.iter().try_for_each(output::json_line).or_failure()
    } else {
        print(&figures);
        Ok(())
    }
}

fn refused(file: &Path) -> impl Fn(std::io::Error) -> CliError {
    move |error| CliError::usage(format!("--service-out {}: {error}", file.display()))
}

fn print(figures: &[Figure]) {
    let mut table = output::table(&["policy", "operation", "threads", "ns", "from", "to"], 2);
    for Figure { policy, operation, threads, ns, ns_low, ns_high, .. } in figures {
        let ns = [ns, ns_low, ns_high].map(|ns| format!("{ns:.1}"));
        let [ns, low, high] = ns;
        table.add_row([
            policy.clone(),
            (*operation).to_owned(),
            threads.to_string(),
            ns,
            low,
            high,
        ]);
    }
    output::print_table(&table);
}
