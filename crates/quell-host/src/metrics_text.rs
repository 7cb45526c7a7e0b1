//! Metrics text: numbers as Prometheus reads them, text format 0.0.4.

use std::fmt::{Display, Write as _};
use std::time::Duration;

use crate::numbers::{ListenerMetrics, Number};
use crate::tally::Histogram;

/// The number that a metric of a listener shows.
type NumberOf = fn(&ListenerMetrics) -> &Number;

/// The metrics of a listener: name, type and help.
const OF_LISTENERS: [(&str, NumberOf); 7] = [
    (
        "quell_connections gauge Connections that are open.",
        |numbers| &numbers.open,
    ),
    (
        "quell_connections_total counter Connections so far.",
        |numbers| &numbers.accepted,
    ),
    (
        "quell_protocol_errors_total counter Requests and frames that could not be understood, and floods of frames.",
        |numbers| &numbers.protocol_errors,
    ),
    (
        "quell_failed_logins_total counter Requests and commands with a token that is not among the credentials.",
        |numbers| &numbers.failed_logins,
    ),
    (
        "quell_timeouts_total counter Connections that were closed since they stood still.",
        |numbers| &numbers.timeouts,
    ),
    (
        "quell_tls_errors_total counter Handshakes of TLS that failed, and clients that did not begin one on a listener with TLS.",
        |numbers| &numbers.tls_errors,
    ),
    (
        "quell_panics_total counter Connections that ended by a mistake of the server's.",
        |numbers| &numbers.panics,
    ),
];

/// A duration in seconds, exact.
#[derive(Debug)]
pub struct Seconds(pub Duration);

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:09}", self.0.as_secs(), self.0.subsec_nanos())
    }
}

/// Writes lines; writing to a string cannot fail.
#[derive(Debug, Default)]
pub struct MetricsText(pub String);

impl MetricsText {
    /// Begins a metric of which `about` has the name, the type and the help. Returns the name.
    pub fn head<'a>(&mut self, about: &'a str) -> &'a str {
        let mut words = about.splitn(3, ' ');
        let [name, kind, help] = [(); 3].map(|()| words.next().unwrap_or_default());
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        name
    }

    /// A metric of one number.
    pub fn number(&mut self, about: &str, value: impl Display) {
        let name = self.head(about);
        self.labelled(name, &[], value);
    }

    /// A metric of a number for each value of a label.
    pub fn by<V: Display>(
        &mut self,
        about: &str,
        label: &str,
        values: impl IntoIterator<Item = (impl AsRef<str>, V)>,
    ) {
        let name = self.head(about);
        for (text, value) in values {
            self.labelled(name, &[(label, text.as_ref())], value);
        }
    }

    /// A line of a metric that was begun.
    pub fn labelled(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.0.push(if index == 0 { '{' } else { ',' });
            let text = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(self.0, "{label}=\"{text}\"");
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{end} {value}");
    }

    /// Writes counts of the connections of each listener.
    pub fn listeners<'a, I>(&mut self, listeners: I)
    where
        I: IntoIterator<Item = (&'a str, &'a ListenerMetrics), IntoIter: Clone>,
    {
        let listeners = listeners.into_iter();
        for (about, number) in OF_LISTENERS {
            let numbers = listeners.clone();
            let numbers = numbers.map(|(name, numbers)| (name, number(numbers).get()));
            self.by(about, "listener", numbers);
        }
        let name = self.head("quell_connections_refused_total counter Connections that were refused or ended because the bound that this setting sets was reached.");
        for (listener, numbers) in listeners {
            for (reason, count) in numbers.refused.by_setting() {
                self.labelled(name, &[("listener", listener), ("reason", reason)], count);
            }
        }
    }

    /// The lines of a histogram that was begun, of one source.
    pub fn histogram(&mut self, name: &str, source: &str, histogram: &Histogram) {
        // Read once: the last part is the count.
        let mut count = 0;
        for (edge, sum) in histogram.parts() {
            count = sum;
            let labels = [("source", source), ("le", &*edge)];
            self.labelled(&format!("{name}_bucket"), &labels, sum);
        }
        let labels = [("source", source)];
        self.labelled(&format!("{name}_sum"), &labels, Seconds(histogram.sum()));
        self.labelled(&format!("{name}_count"), &labels, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut text = MetricsText::default();
        text.labelled("m", &[("a", "x\"\\\n"), ("b", "")], 1);
        assert_eq!(text.0, "m{a=\"x\\\"\\\\\\n\",b=\"\"} 1\n");
    }
}
