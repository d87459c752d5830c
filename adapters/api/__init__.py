"""The admin API's part below /api/tenants/{t}/adapters/, and the operator's fleet."""
