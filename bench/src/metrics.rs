//! The metrics of a program.

/// The text of `/metrics`.
#[derive(Debug, Default)]
pub(crate) struct Metrics(pub(crate) String);

impl Metrics {
    /// The sum of a metric's series that have all these labels, each written as `name="value"`.
    pub(crate) fn sum(&self, metric: &str, labels: &[&str]) -> f64 {
        let series = self.0.lines().filter_map(|line| {
            let rest = line.strip_prefix(metric)?;
            rest.starts_with(['{', ' ']).then_some(rest)
        });
        let wanted = series.filter(|series| labels.iter().all(|label| series.contains(label)));
        wanted.filter_map(|series| series.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// [`Metrics::sum`] of counters, which have no fractions.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counters are whole, positive and far below the largest number"
    )]
    pub(crate) fn count(&self, metric: &str, labels: &[&str]) -> u64 {
        self.sum(metric, labels).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_with_the_labels_are_added_up() {
        let text = "# HELP asked_total Questions\nasked_total{a=\"x\",b=\"1\"} 3\nasked_total{a=\"x\",b=\"2\"} 1.5e+06\n\
                    asked_total{a=\"y\",b=\"1\"} 7\nasked_total_more 100\nalone 2.5\n";
        let metrics = Metrics(text.to_owned());
        assert_eq!(metrics.count("asked_total", &["a=\"x\""]), 1_500_003);
        assert_eq!(metrics.count("asked_total", &["a=\"x\"", "b=\"1\""]), 3);
        assert_eq!(metrics.count("asked_total", &[]), 1_500_010);
        assert_eq!(metrics.sum("alone", &[]).to_string(), "2.5");
        assert_eq!(Metrics::default().count("asked_total", &[]), 0);
    }
}
