-- Health of a Policy or ClusterPolicy of policies.portcullis.dev for Argo CD.
--
-- A condition counts only if it speaks of the newest generation.

local health = { status = "Progressing", message = "nobody has looked at this generation yet" }

local status = obj.status
if status == nil or status.conditions == nil then
  return health
end

local generation = 0
if obj.metadata ~= nil and obj.metadata.generation ~= nil then
  generation = obj.metadata.generation
end

local conditions = {}
for _, condition in ipairs(status.conditions) do
  if condition.observedGeneration ~= nil and condition.observedGeneration >= generation then
    conditions[condition.type] = condition
  end
end

local function words(condition)
  if condition.message == nil or condition.message == "" then
    return condition.reason
  end
  return condition.reason .. ": " .. condition.message
end

local ready = conditions.Ready
if ready == nil then
  return health
end

health.message = words(ready)

if ready.status == "True" then
  if ready.reason == "Suspended" then
    health.status = "Suspended"
  else
    health.status = "Healthy"
  end
  return health
end

local stalled = conditions.Stalled
if stalled ~= nil and stalled.status == "True" then
  health.status = "Degraded"
  health.message = words(stalled)
  return health
end

-- Failing replicas are reported even while they are tried again: the policy may not be enforced.
if ready.reason == "Error" or ready.reason == "Degraded" then
  health.status = "Degraded"
end

return health
