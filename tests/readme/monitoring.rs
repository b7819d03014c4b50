//! The alert rules of docs/monitoring.md, as promtool checks and evaluates them.

use std::process::Command;

use crate::home::write;
use crate::page::blocks;
use harness::has;

/// Metrics as csalock prints them, every minute, and the alerts that fire.
const CASES: &str = r#"rule_files: [rules.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: 'csalock_up{store="dir:/a", instance="one"}'
        values: '0x30'
      - series: 'csalock_up{store="dir:/b", instance="one"}'
        values: '1x30'
      - series: 'csalock_held_seconds{store="dir:/b", name="long"}'
        values: '21660x30'
      - series: 'csalock_held_seconds{store="dir:/b", name="short"}'
        values: '60x30'
      - series: 'csalock_oldest_wait_seconds{store="dir:/b", name="short"}'
        values: '3600x30'
      - series: 'csalock_last_ending_timestamp_seconds{store="dir:/b", name="short", ending="died"}'
        values: '60x30'
      - series: 'csalock_due_timestamp_seconds{store="dir:/b", name="late"}'
        values: '300x30'
      - series: 'csalock_due_timestamp_seconds{store="dir:/b", name="punctual"}'
        values: '3600x30'
      - series: 'csalock_unreadable_records{store="dir:/b"}'
        values: '0x30'
    alert_rule_test:
      - eval_time: 10m
        alertname: CsalockStoreDown
        exp_alerts:
          - exp_labels: {store: "dir:/a", instance: one}
            exp_annotations: {summary: "The store dir:/a does not answer on one."}
      - eval_time: 10m
        alertname: CsalockHeldLong
        exp_alerts:
          - exp_labels: {store: "dir:/b", name: long}
            exp_annotations: {summary: "The lock long is held for 6h 1m 0s."}
      - eval_time: 10m
        alertname: CsalockWaitLong
        exp_alerts:
          - exp_labels: {store: "dir:/b", name: short}
            exp_annotations: {summary: "A caller waits for the lock short for 1h 0m 0s."}
      - eval_time: 10m
        alertname: CsalockHolderGone
        exp_alerts:
          - exp_labels: {store: "dir:/b", name: short, ending: died}
            exp_annotations: {summary: "The last holder of short did not release it: died."}
      - eval_time: 20m
        alertname: CsalockHolderGone
        exp_alerts: []
      - eval_time: 10m
        alertname: CsalockJobOverdue
        exp_alerts:
          - exp_labels: {store: "dir:/b", name: late}
            exp_annotations: {summary: "The job late has not succeeded in time."}
      - eval_time: 10m
        alertname: CsalockUnreadableRecord
        exp_alerts: []
"#;

#[test]
fn promtool_accepts_the_alert_rules_and_they_fire() {
    require!(has("promtool"));
    let place = tempfile::tempdir().unwrap();
    let rules = blocks("yaml").into_iter().filter(|block| block.page == "docs/monitoring.md");
    let rules: String = rules.map(|block| block.text).collect();
    write(&place.path().join("rules.yml"), &rules);
    write(&place.path().join("cases.yml"), CASES);
    for words in [["check", "rules", "rules.yml"], ["test", "rules", "cases.yml"]] {
        let done = Command::new("promtool").args(words).current_dir(&place).output().unwrap();
        let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        assert!(done.status.success(), "{words:?}: {said}");
    }
}
