//! Tests of the policies and admissions against their contracts, papers and simple models.

mod admission;
mod admission_registry;
mod any;
mod contract;
mod fussy;
mod fussy_tuned;
mod known_answers;
mod models;
mod more_models;
mod registry;
mod sarc;
mod shedding;
mod support;
mod trial;
mod weights;
