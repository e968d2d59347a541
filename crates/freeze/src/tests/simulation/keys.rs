//! Generators of the keys that a simulated cache is asked for.

/// A generator of keys.
pub(crate) enum Keys {
    Zipf { shares: Vec<f64>, shift: u64, every: u64 },
    Loop(u64),
    Scan,
    Uniform(u64),
}

impl Keys {
    pub(crate) fn zipf(keys: usize, theta: f64) -> Self {
        Self::drifting(keys, theta, 0, u64::MAX)
    }

    /// Creates a generator in which each rank moves on by `shift` keys after every `every`
    /// requests.
    pub(crate) fn drifting(keys: usize, theta: f64, shift: u64, every: u64) -> Self {
        let mut sum = 0.0;
        let mut shares: Vec<f64> = (1..=keys)
            .map(|rank| {
                sum += (rank as f64).powf(-theta);
                sum
            })
            .collect();
        shares.iter_mut().for_each(|share| *share /= sum);
        Self::Zipf { shares, shift, every }
    }
}
