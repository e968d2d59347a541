//! Prompts to language models, as chains of blocks of their keys and values.

use serde::Deserialize;

use super::{Fit, Spec, fit_lines};
use crate::decode::{Batch, Clock, Line, Lines, Sample};
use crate::fields::Flaw;
use crate::request::{Op, Request, TraceKind};

pub(super) static PROMPTS: Spec = Spec {
    name: "prompts",
    kind: TraceKind::Key,
    layout: "text: a JSON object a line with `hash_ids`, and `timestamp` if any",
    origin: "Mooncake, Qwen-Bailian",
    fit: fit_prompts,
    names: &["mooncake", "bailian"],
    decoder: || Box::new(Lines::new(Prompts::new())),
    ..Spec::NONE
};

/// A line of the trace. Other fields are skipped.
#[derive(Deserialize)]
struct Prompt {
    /// Blocks of the prompt, each identified by all tokens up to its end.
    hash_ids: Vec<u64>,
    /// Milliseconds; seconds where the line has a `chat_id`.
    #[serde(default)]
    timestamp: f64,
    /// Present in the traces of Qwen-Bailian.
    chat_id: Option<serde::de::IgnoredAny>,
}

/// Traces of prompts: each block of a prompt is a request, and all blocks of a prompt have its
/// number, from 0, as their volume.
struct Prompts {
    clock: Clock,
    next: u32,
}

impl Prompts {
    fn new() -> Self {
        Self { clock: Clock::new(1), next: 0 }
    }
}

impl Line for Prompts {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        const EXPECTED: &str = "a JSON object with `hash_ids`, a list of numbers from 0";
        let prompt: Prompt =
            serde_json::from_slice(line).map_err(|_| Flaw::text(EXPECTED, 0, line))?;
        let tick_ns = if prompt.chat_id.is_some() { 1e9 } else { 1e6 };
        // The conversion saturates: a time below 0 is 0.
        let time_ns = self.clock.since_first_ns((prompt.timestamp * tick_ns) as u64);
        for key in prompt.hash_ids {
            batch.push(Request { time_ns, key, bytes: 1, volume: self.next, op: Op::Read });
        }
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }
}

fn fit_prompts(sample: &Sample<'_>) -> Fit {
    fit_lines(sample, Prompts::new())
}
