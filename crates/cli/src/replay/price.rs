//! `--price tier0=1,tier1=0.38`: the price of a byte in each tier, relative to DRAM.

use std::str::FromStr;

use crate::error::CliError;

/// The price of one tier, which has its number in the tables of a replay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TierPrice {
    tier: usize,
    price: f64,
}

impl FromStr for TierPrice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no price of a tier; write tier0=1 or tier1=0.38");
        let (tier, price) = text.split_once('=').ok_or_else(wrong)?;
        let tier =
            tier.strip_prefix("tier").and_then(|number| number.parse().ok()).ok_or_else(wrong)?;
        let price =
            price.parse().ok().filter(|price| (1e-6..=1e6).contains(price)).ok_or_else(wrong)?;
        Ok(Self { tier, price })
    }
}

/// Returns the prices of all tiers, from the top; `None` where none is given.
pub(super) fn of_all(told: &[TierPrice], tiers: usize) -> Result<Option<Vec<f64>>, CliError> {
    if told.is_empty() {
        return Ok(None);
    }
    let wrong =
        |tier: usize, problem: &str| CliError::usage(format!("--price: tier{tier} {problem}"));
    let mut prices = vec![None; tiers];
    for TierPrice { tier, price } in told {
        let place = prices.get_mut(*tier).ok_or_else(|| {
            let last = tiers - 1;
            wrong(*tier, &format!("is not there; the last one is tier{last}"))
        })?;
        if place.replace(*price).is_some() {
            return Err(wrong(*tier, "is told twice"));
        }
    }
    let priced = prices.into_iter().enumerate();
    let all = priced
        .map(|(tier, price)| price.ok_or_else(|| wrong(tier, "has none; tell that of each tier")));
    all.collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(texts: &[&str], tiers: usize) -> Result<Option<Vec<f64>>, String> {
        let prices: Result<Vec<TierPrice>, String> =
            texts.iter().map(|text| text.parse()).collect();
        of_all(&prices?, tiers).map_err(|error| format!("{error:?}"))
    }

    #[test]
    fn each_tier_has_one_price_or_none_has() {
        assert_eq!(told(&["tier1=0.38", "tier0=1"], 2), Ok(Some(vec![1.0, 0.38])));
        assert_eq!(told(&[], 2), Ok(None));
        for (wrong, tiers, said) in [
            (&["tier0=1"][..], 2, "tier1 has none"),
            (&["tier1=1", "tier0=1"], 1, "tier1 is not there; the last one is tier0"),
            (&["tier0=1", "tier0=2"], 1, "tier0 is told twice"),
            (&["tier0"], 1, "`tier0` is no price"),
            (&["memory=1"], 1, "`memory=1` is no price"),
            (&["tier0=0"], 1, "`tier0=0` is no price"),
            (&["tier0=nan"], 1, "`tier0=nan` is no price"),
        ] {
            let error = told(wrong, tiers).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
