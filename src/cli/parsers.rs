//! Parsers of option values.

use std::fmt::Display;
use std::str::FromStr;

/// A whole number from `least` to `most`.
pub(super) fn whole<N>(least: N, most: N) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync
where
    N: FromStr + Display + PartialOrd + Copy + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("is not a whole number from {least} to {most}"))
    }
}
