//! A chart as data: series of points over two axes.
//!
//! A chart whose points have several values of x is drawn as lines. With a single value of x it has
//! a row of dots for each series, best first. The colour of a series follows from its number, so
//! that a policy looks the same in every chart of a report.

/// A chart, drawn as lines or as rows of dots.
#[derive(Debug, Clone)]
pub struct Chart {
    /// Name that ends the chart's file name, such as `miss-ratio`.
    pub name: String,
    /// Title of the chart.
    pub title: String,
    /// A sentence on reading the chart; may be empty.
    pub note: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The series, which are the lines or the rows of dots.
    pub series: Vec<Series>,
    /// Ranges of x to highlight, from left to right.
    pub bands: Vec<Band>,
}

/// A highlighted range of x. Ranges with the same name look the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Band {
    /// Name of the range in the legend.
    pub name: String,
    /// Lower end of the range.
    pub from: f64,
    /// Upper end of the range.
    pub to: f64,
    /// Number of the range's colour, as for a series; `None` for grey.
    pub look: Option<usize>,
}

/// A named line of points in a chart.
#[derive(Debug, Clone)]
pub struct Series {
    /// Name of the series, written beside it.
    pub name: String,
    /// Number of the colour and marker; series of a report with the same number look the same.
    /// `None` for a theoretical bound.
    pub look: Option<usize>,
    /// Points of the series, by increasing x.
    pub points: Vec<Point>,
}

/// A point of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Value on the x axis.
    pub x: f64,
    /// Value on the y axis.
    pub y: f64,
    /// Half the width of the interval around `y`; `None` to show no interval.
    pub error: Option<f64>,
}

impl Chart {
    /// Returns the chart without points that cannot be drawn, such as zero on a logarithmic axis,
    /// and without series that have no others.
    pub(super) fn drawable(&self) -> Chart {
        let mut chart = self.clone();
        for series in &mut chart.series {
            let place = |p: &Point| (self.x.scale.place(p.x), self.y.scale.place(p.y));
            series.points.retain(|p| place(p).0.is_finite() && place(p).1.is_finite());
            series.points.sort_by(|a, b| a.x.total_cmp(&b.x));
        }
        chart.series.retain(|series| !series.points.is_empty());
        // Shares are told apart from zero on; other values by their ratio.
        let shares = matches!(chart.y.unit, Unit::Ratio | Unit::Points);
        if chart.y.scale == Scale::Linear && !shares && !chart.is_single() {
            chart.y.scale = Scale::of(chart.heights());
        }
        chart
    }

    /// Returns whether all points have the same x.
    pub(super) fn is_single(&self) -> bool {
        self.places().len() <= 1
    }

    /// Returns whether y is the share of requests answered within x, so that a line never falls.
    pub(super) fn is_cumulative(&self) -> bool {
        self.y.scale == Scale::Nines
    }

    /// Adds a sentence to the note for the first series that rises where a larger x should not make
    /// it worse: from which x to which, by more than the intervals around both points.
    pub(super) fn note_rise(&mut self) {
        let rises = |pair: &&[Point]| pair[1].low() > pair[0].high() && pair[1].y > pair[0].y;
        let find = |series: &Series| {
            let mut points = series.points.clone();
            points.sort_by(|one, other| one.x.total_cmp(&other.x));
            let rise = points
                .windows(2)
                .filter(rises)
                .max_by(|one, other| (one[1].y - one[0].y).total_cmp(&(other[1].y - other[0].y)))?;
            Some((series.name.clone(), rise[0], rise[1]))
        };
        let real = self.series.iter().filter(|series| series.look.is_some());
        let found: Vec<_> = real.filter_map(find).collect();
        let Some((name, from, to)) = found.first() else { return };
        let (x, y) = (self.x.unit, self.y.unit);
        let others = match found.len() - 1 {
            0 => String::new(),
            1 => ", and one other line rises, too".to_owned(),
            more => format!(", and {more} other lines rise, too"),
        };
        let note = format!(
            " {name} rises from {} at {} to {} at {}{others}: a larger cache need not keep all \
             that a smaller one keeps.",
            y.value(from.y),
            x.value(from.x),
            y.value(to.y),
            x.value(to.x),
        );
        self.note.push_str(&note);
    }

    /// Returns the distinct values of x, in increasing order.
    pub(super) fn places(&self) -> Vec<f64> {
        let mut places: Vec<f64> = self.points().map(|point| point.x).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        places
    }

    /// Returns all values that must fit on the y axis, ends of intervals included.
    pub(super) fn heights(&self) -> impl Iterator<Item = f64> {
        self.points().flat_map(|point| [point.low(), point.y, point.high()])
    }

    /// Returns whether any point has an interval wider than zero.
    pub(super) fn has_errors(&self) -> bool {
        span(self.points().filter_map(|point| point.error)).1 > 0.0
    }

    fn points(&self) -> impl Iterator<Item = &Point> {
        self.series.iter().flat_map(|series| &series.points)
    }
}

impl Point {
    /// Returns the lower end of the interval, at least zero where the value is not negative.
    pub(super) fn low(&self) -> f64 {
        let low = self.y - self.error.unwrap_or(0.0);
        if self.y >= 0.0 { low.max(0.0) } else { low }
    }

    /// Returns the upper end of the interval.
    pub(super) fn high(&self) -> f64 {
        self.y + self.error.unwrap_or(0.0)
    }
}

/// Unit of a number, which decides its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A number of things, without a unit.
    Count,
    /// Bytes, written with binary prefixes.
    Bytes,
    /// A share of one, written as a percentage.
    Ratio,
    /// A difference of shares, written in percentage points.
    Points,
    /// Time in microseconds.
    Microseconds,
    /// Time in seconds.
    Seconds,
    /// A rate in events a second.
    PerSecond,
}

impl Unit {
    /// Formats a number with its unit, rounded to the digits that matter.
    pub fn value(self, value: f64) -> String {
        if !value.is_finite() {
            return "–".to_owned();
        }
        match self {
            Unit::Count if value.abs() < 1e9 && value.fract() == 0.0 => grouped(value, 0),
            Unit::Count => prefixed(value, 1000.0, &["", " k", " M", " G", " T", " P", " E"]),
            Unit::PerSecond => format!("{}/s", Unit::Count.short(value)),
            Unit::Bytes => self.short(value),
            Unit::Seconds => format!("{} s", plain(value, 2)),
            Unit::Ratio => format!("{} %", plain(value * 100.0, 2)),
            Unit::Points => format!("{} pp", plain(value * 100.0, 2)),
            Unit::Microseconds => {
                let decimals = 2 - (value.abs().max(1.0).log10().floor() as usize).min(2);
                format!("{} µs", grouped(value, decimals))
            }
        }
    }

    /// Formats a number in few characters, for cache sizes along an axis.
    pub fn short(self, value: f64) -> String {
        match self {
            Unit::Count if value.abs() < 100_000.0 && value.fract() == 0.0 => grouped(value, 0),
            Unit::Count => prefixed(value, 1000.0, &["", " k", " M", " G", " T", " P", " E"]),
            Unit::Bytes => {
                prefixed(value, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"])
            }
            Unit::Seconds => plain(value, if value.fract() == 0.0 { 0 } else { 2 }),
            _ => self.value(value),
        }
    }

    /// Formats the number of a tick on an axis that names the unit, when ticks are `step` apart.
    fn tick(self, value: f64, step: f64) -> String {
        let by = if matches!(self, Unit::Ratio | Unit::Points) { 100.0 } else { 1.0 };
        let decimals = (-(step * by).log10() - 1e-9).ceil().clamp(0.0, 9.0) as usize;
        match self {
            Unit::Count if step >= 1000.0 || value.abs() >= 100_000.0 => self.short(value),
            Unit::Bytes | Unit::PerSecond => self.short(value),
            _ => grouped(value * by, decimals),
        }
    }

    /// Returns the unit that an axis appends to its label.
    fn suffix(self) -> &'static str {
        match self {
            Unit::Ratio => " (%)",
            Unit::Points => " (percentage points)",
            Unit::Microseconds => " (µs)",
            Unit::Seconds => " (s)",
            Unit::Count | Unit::Bytes | Unit::PerSecond => "",
        }
    }

    /// Returns the length of an axis on which all values are zero.
    fn smallest(self) -> f64 {
        if matches!(self, Unit::Ratio | Unit::Points) { 0.01 } else { 1.0 }
    }
}

/// Formats a number with a fixed number of decimals, and zero without a minus sign.
fn plain(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    match text.strip_prefix('-') {
        Some(zero) if zero.bytes().all(|b| matches!(b, b'0' | b'.')) => zero.to_owned(),
        Some(rest) => format!("−{rest}"),
        None => text,
    }
}

/// Formats a number with a fixed number of decimals and separated thousands.
fn grouped(value: f64, decimals: usize) -> String {
    let text = plain(value, decimals);
    let whole = text.find('.').unwrap_or(text.len());
    let mut out = String::new();
    for (at, c) in text.char_indices() {
        if at > 0
            && at < whole
            && (whole - at).is_multiple_of(3)
            && out.ends_with(|c: char| c.is_ascii_digit())
        {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Formats a number with three significant digits and a prefix.
fn prefixed(value: f64, base: f64, prefixes: &[&str]) -> String {
    let mut value = value;
    let mut at = 0;
    // Half a unit in the last digit shown belongs to the next prefix: 999,999 is 1 M.
    while value.abs() >= base - 0.5 && at + 1 < prefixes.len() {
        value /= base;
        at += 1;
    }
    let decimals = if at == 0 && value.fract() == 0.0 {
        0
    } else {
        2 - (value.abs().max(1.0).log10() as usize).min(2)
    };
    let text = plain(value, decimals);
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{}", prefixes[at])
}

/// The scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Linear: equal differences have equal lengths.
    Linear,
    /// Logarithmic: equal ratios have equal lengths.
    Log,
    /// Scale of shares on which each further nine has equal length, which separates 99.9 % from 99
    /// %.
    Nines,
}

impl Scale {
    /// Returns the logarithmic scale if positive values span a decade or more, else the linear one.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let (low, high) = span(values);
        if low > 0.0 && high / low >= 10.0 { Scale::Log } else { Scale::Linear }
    }

    /// Converts a value to a position on an axis, which is linear in the drawing.
    pub(super) fn place(self, value: f64) -> f64 {
        match self {
            Scale::Linear => value,
            Scale::Log => value.ln(),
            Scale::Nines => -(1.0 - value).log10(),
        }
    }
}

/// One axis of a chart.
#[derive(Debug, Clone)]
pub struct Axis {
    /// The measured quantity, without the unit.
    pub label: String,
    /// Unit of the values on the axis.
    pub unit: Unit,
    /// Scale of the axis.
    pub scale: Scale,
}

/// A value marked on an axis, and its text.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tick {
    pub(super) value: f64,
    pub(super) text: String,
}

impl Axis {
    /// Creates a linear axis.
    pub fn new(label: &str, unit: Unit) -> Self {
        Self { label: label.to_owned(), unit, scale: Scale::Linear }
    }

    /// Returns the label with the unit, as written beside the axis.
    pub(super) fn caption(&self) -> String {
        let scale = match self.scale {
            Scale::Linear => "",
            Scale::Log => ", log scale",
            Scale::Nines => ", scale of nines",
        };
        format!("{}{}{scale}", self.label, self.unit.suffix())
    }

    /// Returns the caption of an axis with these ticks, with a note if a linear axis does not begin
    /// at zero.
    pub(super) fn caption_with(&self, ticks: &[Tick]) -> String {
        let zero = ticks.iter().any(|tick| tick.value == 0.0);
        let note = if zero || self.scale != Scale::Linear { "" } else { ", not from zero" };
        self.caption() + note
    }

    /// Returns ticks that enclose all `values`; the first and the last are the ends of the axis.
    pub(super) fn ticks(&self, values: impl IntoIterator<Item = f64>) -> Vec<Tick> {
        match self.scale {
            Scale::Linear => self.round_ticks(values),
            Scale::Log => self.log_ticks(span(values)),
            Scale::Nines => nines(span(values).1),
        }
    }

    /// Returns powers of ten that enclose positive values, with their multiples by 2 and 5 if there
    /// are few.
    fn log_ticks(&self, (low, high): (f64, f64)) -> Vec<Tick> {
        let decades = (high / low).log10();
        let factors: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let exponents = (low.log10().floor() as i32)..=(high.log10().ceil() as i32);
        let all: Vec<f64> = exponents
            .flat_map(|exponent| factors.iter().map(move |factor| factor * 10f64.powi(exponent)))
            .collect();
        let first = all.iter().rposition(|tick| *tick <= low * 1.000_001).unwrap_or(0);
        let last = all.iter().position(|tick| *tick >= high / 1.000_001).unwrap_or(all.len() - 1);
        let tick = |&value: &f64| Tick { value, text: self.unit.tick(value, value) };
        all[first..=last].iter().map(tick).collect()
    }

    /// Returns round numbers that enclose all `values`; the first and the last are the ends of the
    /// axis. The axis begins at zero, unless the values are too close together to be distinguished
    /// then.
    pub(super) fn round_ticks(&self, values: impl IntoIterator<Item = f64>) -> Vec<Tick> {
        let (low, high) = span(values);
        let (mut low, mut high) = if low > high { (0.0, 0.0) } else { (low, high) };
        if low >= 0.0 && (low <= high * 0.6 || high - low <= high * 1e-6) {
            low = 0.0;
        } else if high < 0.0 {
            high = 0.0;
        }
        if high - low <= 0.0 {
            high = low + self.unit.smallest();
        }
        let step = match self.unit {
            Unit::Bytes => ((high - low) / 6.0).log2().ceil().exp2(),
            _ => nice_step(high - low),
        };
        let first = (low / step + 1e-6).floor() as i64;
        let last = (high / step - 1e-6).ceil() as i64;
        let tick = |at: i64| at as f64 * step;
        (first..=last)
            .map(|at| Tick { value: tick(at), text: self.unit.tick(tick(at), step) })
            .collect()
    }

    /// Returns the values themselves if they are few, else round numbers among them, the most
    /// important first.
    pub(super) fn value_ticks(&self, values: &[f64]) -> Vec<Tick> {
        let tick = |value: f64| Tick { value, text: self.unit.short(value) };
        let (low, high) = span(values.iter().copied());
        if values.len() <= 12 {
            let ends = [values[values.len() - 1], values[0]];
            return ends.iter().chain(values).map(|&value| tick(value)).collect();
        }
        let base: f64 = if self.unit == Unit::Bytes { 2.0 } else { 10.0 };
        if self.scale == Scale::Linear {
            let step = if self.unit == Unit::Bytes {
                base.powf(((high - low) / 5.0).log2().round())
            } else {
                nice_step(high - low)
            };
            let count = ((high - low) / step) as usize + 1;
            return (0..=count)
                .map(|at| ((low / step).ceil() + at as f64) * step)
                .filter(|&value| value <= high)
                .map(tick)
                .collect();
        }
        let exponents = (low.log(base).floor() as i32)..=(high.log(base).ceil() as i32);
        let between: &[f64] = if self.unit == Unit::Bytes { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let mut ticks: Vec<Tick> = Vec::new();
        for factor in between {
            ticks.extend(exponents.clone().map(|exponent| tick(factor * base.powi(exponent))));
        }
        ticks.retain(|tick| (low..=high).contains(&tick.value));
        ticks
    }
}

/// Returns shares with increasing numbers of nines, up to one above the highest.
fn nines(highest: f64) -> Vec<Tick> {
    let mut ticks =
        vec![Tick { value: 0.0, text: "0".to_owned() }, Tick { value: 0.5, text: "50".to_owned() }];
    for digits in 1..=9usize {
        let value = 1.0 - 0.1f64.powi(digits as i32);
        let text = format!("{:.*}", digits.saturating_sub(2), 100.0 * value);
        ticks.push(Tick { value, text });
        if value >= highest - 1e-12 {
            break;
        }
    }
    ticks
}

/// Returns the smallest and the largest finite value; infinity and minus infinity without any.
pub(super) fn span(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    values
        .into_iter()
        .filter(|value| value.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        })
}

/// Returns the step that divides `length` into about six: 1, 2 or 5 times a power of ten.
fn nice_step(length: f64) -> f64 {
    let rough = length / 6.0;
    let power = 10f64.powf(rough.log10().floor());
    power
        * [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .find(|step| step * power >= rough * 0.999)
            .unwrap_or(10.0)
}

#[cfg(test)]
mod axis_tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(Unit::Ratio.value(0.23456), "23.46 %");
        assert_eq!(Unit::Points.value(-0.0001), "−0.01 pp");
        assert_eq!(Unit::Points.value(-1e-9), "0.00 pp");
        assert_eq!(Unit::Count.value(1_234_567.0), "1,234,567");
        assert_eq!(Unit::Count.short(131_072.0), "131 k");
        assert_eq!(Unit::Count.short(999_999.0), "1 M");
        assert_eq!(Unit::Bytes.short(1536.0), "1.5 KiB");
        assert_eq!(Unit::Bytes.short(64.0 * 1024.0 * 1024.0), "64 MiB");
        assert_eq!(Unit::Bytes.short(512.0), "512 B");
        assert_eq!(Unit::Microseconds.value(1234.5), "1,234 µs");
        assert_eq!(Unit::Microseconds.value(12.34), "12.3 µs");
        assert_eq!(Unit::PerSecond.value(81_234_567.0), "81.2 M/s");
        assert_eq!(Unit::Ratio.value(f64::NAN), "–");
    }

    #[test]
    fn sizes_over_a_decade_are_logarithmic() {
        assert_eq!(Scale::of([10.0, 100.0]), Scale::Log);
        assert_eq!(Scale::of([10.0, 99.0]), Scale::Linear);
        assert_eq!(Scale::of([0.0, 100.0]), Scale::Linear);
        assert_eq!(Scale::of([]), Scale::Linear);
    }

    #[test]
    fn nines_are_equally_far_apart_and_a_log_axis_encloses_its_values() {
        let texts =
            |ticks: Vec<Tick>| -> Vec<String> { ticks.into_iter().map(|tick| tick.text).collect() };
        let shares = Axis { scale: Scale::Nines, ..Axis::new("share", Unit::Ratio) };
        assert_eq!(texts(shares.ticks([0.1, 0.999])), ["0", "50", "90", "99", "99.9"]);
        let places = [0.0, 0.9, 0.99, 0.999].map(|share| Scale::Nines.place(share));
        assert!(places.iter().zip(0..).all(|(place, at)| (place - f64::from(at)).abs() < 1e-9));
        let times = Axis { scale: Scale::Log, ..Axis::new("time", Unit::Microseconds) };
        assert_eq!(texts(times.ticks([12.0, 340.0])), ["10", "20", "50", "100", "200", "500"]);
        assert_eq!(
            texts(times.ticks([2.0, 30_000.0])),
            ["1", "10", "100", "1,000", "10,000", "100,000"]
        );
    }

    #[test]
    fn an_axis_that_does_not_begin_at_zero_says_so() {
        let axis = Axis::new("miss ratio", Unit::Ratio);
        let caption = |values: [f64; 2]| axis.caption_with(&axis.ticks(values));
        assert_eq!(caption([0.71, 0.73]), "miss ratio (%), not from zero");
        assert_eq!(caption([0.1, 0.73]), "miss ratio (%)");
    }

    #[test]
    fn ticks_are_round_and_enclose_the_values() {
        let texts = |values: &[f64]| -> Vec<String> {
            let axis = Axis::new("miss ratio", Unit::Ratio);
            axis.round_ticks(values.iter().copied()).into_iter().map(|tick| tick.text).collect()
        };
        assert_eq!(texts(&[0.1, 0.55]), ["0", "10", "20", "30", "40", "50", "60"]);
        assert_eq!(texts(&[0.71, 0.73]), ["71.0", "71.5", "72.0", "72.5", "73.0"]);
        assert_eq!(texts(&[0.0, 0.0]).first().map(String::as_str), Some("0.0"));
        assert_eq!(texts(&[]).last().map(String::as_str), Some("1.0"));
        let bytes = Axis::new("written", Unit::Bytes).round_ticks([0.0, 50.0 * 1048576.0]);
        let bytes: Vec<_> = bytes.into_iter().map(|tick| tick.text).collect();
        assert_eq!(bytes, ["0 B", "16 MiB", "32 MiB", "48 MiB", "64 MiB"]);
        assert_eq!(texts(&[-0.01, 0.02]), ["−1.0", "−0.5", "0.0", "0.5", "1.0", "1.5", "2.0"]);
    }
}
