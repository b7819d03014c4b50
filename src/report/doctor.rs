//! The output of `doctor` for people.

use std::fmt::Write as _;

use super::OutputStyle;
use super::table::wrapped;
use store::{Finding, Verdict};

fn shown(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Good => ("ok", "\x1b[32m"),
        Verdict::Doubtful => ("warning", "\x1b[33m"),
        Verdict::Bad => ("error", "\x1b[31m"),
    }
}

/// Each line has its verdict and, below it, how to fix it; a summary follows.
pub(crate) fn findings_text(findings: &[Finding], style: OutputStyle) -> String {
    let topics = findings.iter().map(|finding| finding.topic.chars().count()).max().unwrap_or(0);
    let margin = "warning".len() + 2 + topics + 2;
    let width = style.width.map_or(usize::MAX, |width| width.saturating_sub(margin).max(20));
    let mut text = String::new();
    for finding in findings {
        let (verdict, paint) = shown(finding.verdict);
        let (paint, end) = if style.colour { (paint, "\x1b[0m") } else { ("", "") };
        let mut first = format!("{paint}{verdict:7}{end}  {:topics$}  ", finding.topic);
        let fix = finding.cure.as_ref().map(|cure| format!("fix: {cure}"));
        for line in std::iter::once(&finding.found).chain(&fix).flat_map(|text| wrapped(text, width)) {
            let _ = writeln!(text, "{first}{line}");
            first = " ".repeat(margin);
        }
    }
    text + &sum(findings)
}

fn sum(findings: &[Finding]) -> String {
    let number = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    match (number(Verdict::Bad), number(Verdict::Doubtful)) {
        (0, 0) => "All is well.\n".to_string(),
        (0, 1) => "Locks work here, with 1 warning.\n".to_string(),
        (0, warnings) => format!("Locks work here, with {warnings} warnings.\n"),
        _ => "Locks do not work here.\n".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_stand_below_each_other_and_fit() {
        let findings = [
            Finding::good("a", "one"),
            Finding::doubtful("longer", "found ".repeat(12).trim_end(), "to do ".repeat(12).trim_end()),
        ];
        let text =
            findings_text(&findings, OutputStyle { colour: false, width: Some(40), zone: crate::report::Zone::Utc });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "ok       a       one");
        assert_eq!(lines[1], "warning  longer  found found found found");
        assert_eq!(lines[4], "                 fix: to do to do to do");
        assert_eq!(lines.last(), Some(&"Locks work here, with 1 warning."));
        assert!(lines.iter().all(|line| line.len() <= 40), "{text}");
    }
}
