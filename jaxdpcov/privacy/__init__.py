"""Privacy: budgets, accounting, the ledger, sensitivities, and the only doors for noise and selection."""
